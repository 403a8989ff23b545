"""A follower's log: the leader's bytes as they are, or nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.replica_append import Replicated, UnfitRecords
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import PREFIX_BYTES, Record, build_batch, parse_header, prefix

EPOCH = 4


@pytest.fixture
def leader(make_world: Callable[..., Any]) -> Any:
    return make_world()


def sent(leader: Any, offset: int = 0, max_bytes: int = 1 << 20) -> bytes:
    """What a leader's log answers a fetch with: bytes of one segment."""
    found = leader.log.read(offset, max_bytes, leader.log.end, at_least_one=True)
    return b"" if found is None else found.read()


def all_sent(leader: Any) -> bytes:
    return b"".join(leader.read_all())


def placed(batch: bytes, base_offset: int, epoch: int = 0) -> bytes:
    return prefix(base_offset, parse_header(batch).batch_length, epoch) + batch[PREFIX_BYTES:]


def refusal(world: Any, records: bytes) -> ErrorCode:
    end = world.log.end
    with pytest.raises(UnfitRecords) as refused:
        world.log.append_replicated(records, leader_epoch=EPOCH)
    assert world.log.end == end
    return refused.value.code


# What is taken


def test_a_follower_has_the_leaders_bytes_offsets_and_epochs(leader: Any, world: Any) -> None:
    for number in range(6):
        leader.append(3, epoch=number // 2)
    replicated = world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    assert replicated == Replicated(0, 18, len(sent(leader)))
    assert world.read_all() == leader.read_all()
    assert world.log.epochs == leader.log.epochs


def test_a_batch_that_is_cut_short_is_left_for_the_next_fetch(leader: Any, world: Any) -> None:
    for _ in range(3):
        leader.append(2)
    data = sent(leader)
    for cut_bytes in (1, 50, len(data) // 3 - 10):
        assert world.log.append_replicated(data[:-cut_bytes], leader_epoch=EPOCH).size_bytes in (0, len(data) * 2 // 3)
        data = sent(leader, world.log.log_end_offset)
    world.log.append_replicated(data, leader_epoch=EPOCH)
    assert world.read_all() == leader.read_all()


def test_bytes_that_hold_no_whole_batch_change_nothing(leader: Any, world: Any) -> None:
    leader.append(2)
    assert world.log.append_replicated(sent(leader)[:-1], leader_epoch=EPOCH) == Replicated(0, 0, 0)
    assert world.log.append_replicated(b"", leader_epoch=EPOCH) == Replicated(0, 0, 0)
    assert not world.log.exists


def test_offsets_that_compaction_took_are_missing_in_the_follower_too(world: Any) -> None:
    data = placed(world.batch(2), 5) + placed(world.batch(3), 20) + placed(world.batch(1), 23)
    assert world.log.append_replicated(data, leader_epoch=EPOCH).next_offset == 24
    assert [parse_header(batch).base_offset for batch in world.read_all()] == [5, 20, 23]
    world.flush()
    world.checkpoint()
    assert world.reopen().log_end_offset == 24


def test_batches_are_larger_than_any_setting_allows_if_the_leader_took_them(leader: Any, world: Any) -> None:
    leader.append(1, value_bytes=900)
    world.log.configure(TopicConfig(max_message_bytes=100, segment_bytes=500))
    world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    assert world.read_all() == leader.read_all()


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_compressed_control_and_transactional_batches_pass(world: Any, codec: Codec) -> None:
    record = Record(0, world.clock.time_ms(), b"\0\0\0\1", b"v")
    data = placed(build_batch([record], codec=codec, producer_id=9, producer_epoch=0, is_transactional=True), 0)
    data += placed(build_batch([record], producer_id=9, producer_epoch=0, is_transactional=True, is_control=True), 1)
    world.log.append_replicated(data, leader_epoch=EPOCH)
    assert b"".join(world.read_all()) == data


def test_a_batch_that_the_leader_stamped_is_found_by_that_time(leader: Any, world: Any) -> None:
    leader.config = TopicConfig(message_timestamp_type="LogAppendTime")
    leader.log.configure(leader.config)
    leader.clock.advance(100)
    leader.append(2, timestamp=5)
    world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    newest = world.log.max_timestamp()
    assert newest is not None
    assert newest[0] == leader.clock.time_ms()


# Producers


def test_a_follower_knows_the_producers_when_it_leads(leader: Any, world: Any) -> None:
    for sequence in range(8):
        leader.append(producer_id=1, producer_epoch=2, base_sequence=sequence)
    world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    again = world.append(producer_id=1, producer_epoch=2, base_sequence=7)
    assert (again.duplicate, again.base_offset) == (True, 7)
    with pytest.raises(ApiError) as refused:
        world.append(producer_id=1, producer_epoch=2, base_sequence=9)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_follower_questions_no_sequence_numbers(world: Any) -> None:
    data = b"".join(
        placed(world.batch(producer_id=1, producer_epoch=0, base_sequence=sequence), offset)
        for offset, sequence in enumerate((5, 5, 90))
    )
    assert world.log.append_replicated(data, leader_epoch=EPOCH).next_offset == 3


# Segments and indexes


@pytest.mark.parametrize("fetch_bytes", [1, 700, 4000])
def test_a_follower_rolls_as_its_leader_did(leader: Any, world: Any, fetch_bytes: int) -> None:
    for number in range(60):
        leader.append(1 + number % 3)
    while world.log.log_end_offset < leader.log.log_end_offset:
        world.log.append_replicated(sent(leader, world.log.log_end_offset, fetch_bytes), leader_epoch=EPOCH)
    assert [each.base_offset for each in world.log.segments] == [each.base_offset for each in leader.log.segments]
    assert world.read_all() == leader.read_all()


def test_batches_for_one_segment_are_one_write(leader: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(30):
        leader.append(2)
    data, writes = all_sent(leader), list[int]()
    world.log.append_replicated(data[: parse_header(data).size_bytes], leader_epoch=EPOCH)
    segment_type = type(world.log.segments.active)
    append = segment_type.append_found
    monkeypatch.setattr(
        segment_type,
        "append_found",
        lambda self, run, headers: (writes.append(len(headers)), append(self, run, headers)),
    )
    world.log.append_replicated(data[parse_header(data).size_bytes :], leader_epoch=EPOCH)
    assert sum(writes) == 29
    # A segment's first batch goes alone; all others of a segment go together.
    assert len(writes) <= 2 * len(world.log.segments)
    assert world.read_all() == leader.read_all()


def test_every_offset_and_time_of_a_follower_is_found(leader: Any, world: Any) -> None:
    for _ in range(40):
        leader.clock.advance(1)
        leader.append(2)
    world.log.append_replicated(all_sent(leader), leader_epoch=EPOCH)
    assert [world.read_batch(offset) for offset in range(80)] == [leader.read_batch(offset) for offset in range(80)]
    for batch in leader.read_all():
        found = world.log.find_timestamp(parse_header(batch).max_timestamp)
        assert found is not None
        assert found.read() == batch


def test_a_follower_is_whole_after_a_power_loss_up_to_its_flush(leader: Any, world: Any) -> None:
    for number in range(40):
        leader.append(2, epoch=number // 10)
    data = all_sent(leader)
    world.log.append_replicated(data[: len(data) // 2], leader_epoch=EPOCH)
    world.flush()
    flushed_offset = world.log.log_end_offset
    world.log.append_replicated(sent(leader, flushed_offset), leader_epoch=EPOCH)
    world.files.lose_power()
    world.reopen()
    assert world.log.log_end_offset >= flushed_offset
    while world.log.log_end_offset < leader.log.log_end_offset:
        world.log.append_replicated(sent(leader, world.log.log_end_offset), leader_epoch=EPOCH)
    assert world.read_all() == leader.read_all()
    assert world.log.epochs == leader.log.epochs


def test_a_hole_before_the_last_batch_is_believed_after_a_crash_if_it_was_marked(world: Any) -> None:
    world.append(2)
    world.flush()
    world.checkpoint()
    world.log.append_replicated(placed(world.batch(2), 9), leader_epoch=EPOCH)
    assert world.log.ends_after_hole
    world.log.mark_hole()
    world.flush()
    world.files.lose_power()
    assert world.reopen().log_end_offset == 11


def test_a_hole_without_a_mark_is_taken_for_damage(world: Any) -> None:
    world.append(2)
    world.flush()
    world.checkpoint()
    world.log.append_replicated(placed(world.batch(2), 9), leader_epoch=EPOCH)
    assert world.reopen().log_end_offset == 2


def test_a_hole_before_what_was_flushed_is_believed_after_a_kill(world: Any) -> None:
    world.append(2)
    world.flush()
    world.checkpoint()
    world.log.append_replicated(placed(world.batch(2), 9), leader_epoch=EPOCH)
    world.flush()
    assert world.reopen().log_end_offset == 11


def test_only_the_newest_marks_of_holes_are_kept(world: Any) -> None:
    for base_offset in (5, 10, 15, 20):
        world.log.append_replicated(placed(world.batch(1), base_offset), leader_epoch=EPOCH)
        world.log.mark_hole()
    assert world.names(".hole") == [f"{end:020d}.hole" for end in (16, 21)]
    world.log.append_replicated(placed(world.batch(1), 21), leader_epoch=EPOCH)
    assert not world.log.ends_after_hole


# What is refused


def test_one_damaged_batch_refuses_all_of_the_answer(leader: Any, world: Any) -> None:
    for _ in range(3):
        leader.append(2)
    data = bytearray(sent(leader))
    data[-1] ^= 1
    assert refusal(world, bytes(data)) is ErrorCode.CORRUPT_MESSAGE
    assert not world.log.exists


def test_bytes_that_are_no_batch_are_refused(world: Any) -> None:
    assert refusal(world, bytes(100)) is ErrorCode.INVALID_RECORD
    assert refusal(world, b"\xff" * 100) is ErrorCode.CORRUPT_MESSAGE


def test_offsets_that_the_log_has_are_refused(leader: Any, world: Any) -> None:
    leader.append(2)
    leader.append(2)
    world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    assert refusal(world, sent(leader, 2)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_batches_out_of_order_are_refused(world: Any) -> None:
    data = placed(world.batch(2), 0) + placed(world.batch(2), 1)
    assert refusal(world, data) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    "epochs", [pytest.param((2, 1), id="one that goes back"), pytest.param((2, 5), id="one after the leader's")]
)
def test_leader_epochs_that_cannot_be_are_refused(world: Any, epochs: tuple[int, int]) -> None:
    data = placed(world.batch(1), 0, epochs[0]) + placed(world.batch(1), 1, epochs[1])
    assert refusal(world, data) is ErrorCode.CORRUPT_MESSAGE


def test_a_full_disk_leaves_what_fitted_and_is_no_fault(leader: Any, world: Any) -> None:
    for _ in range(30):
        leader.append(2)
    data = all_sent(leader)
    world.log.append_replicated(data[:500], leader_epoch=EPOCH)
    end = world.log.log_end_offset
    world.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError) as refused:
        world.log.append_replicated(sent(leader, end), leader_epoch=EPOCH)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.log.log_end_offset == end
    while world.log.log_end_offset < leader.log.log_end_offset:
        world.log.append_replicated(sent(leader, world.log.log_end_offset), leader_epoch=EPOCH)
    assert world.read_all() == leader.read_all()


# Starting over


def test_a_log_that_starts_over_elsewhere_has_nothing_left(world: Any) -> None:
    for sequence in range(40):
        world.append(producer_id=1, producer_epoch=0, base_sequence=sequence, epoch=sequence // 10)
    world.flush()
    world.reset_to(100)
    assert (world.log.log_start_offset, world.log.log_end_offset, world.log.epochs.latest) == (100, 100, -1)
    assert world.names(".log") == ["00000000000000000100.log"]
    assert world.names(".snapshot") == []
    assert world.append(producer_id=1, producer_epoch=0, base_sequence=7, epoch=5).base_offset == 100


def test_a_log_can_start_over_before_where_it_began(world: Any) -> None:
    world.append(5)
    world.flush()
    world.reset_to(100)
    world.append(5)
    world.flush()
    world.reset_to(50)
    assert (world.log.log_start_offset, world.log.log_end_offset, world.log.recovery_point) == (50, 50, 50)
    assert world.append(5).base_offset == 50


def test_a_log_that_starts_over_is_not_durable_before_its_flush(world: Any) -> None:
    world.append(5)
    world.flush()
    world.reset_to(100)
    assert world.log.recovery_point == 0
    world.flush()
    assert world.log.recovery_point == 100
    world.checkpoint()
    world.files.lose_power()
    assert (world.reopen().log_start_offset, world.log.log_end_offset) == (100, 100)


def test_a_power_loss_right_after_starting_over_leaves_the_old_log_or_the_new(world: Any) -> None:
    for _ in range(40):
        world.append(2)
    world.flush()
    world.checkpoint()
    world.reset_to(100)
    world.files.lose_power()
    world.reopen()
    assert (world.log.log_start_offset, world.log.log_end_offset) in ((0, 80), (100, 100))


def test_a_log_that_nothing_was_appended_to_can_start_elsewhere(world: Any) -> None:
    world.reset_to(100)
    world.flush()
    world.checkpoint()
    assert (world.reopen().log_start_offset, world.log.log_end_offset) == (100, 100)
    assert world.append().base_offset == 100


def test_a_followers_log_stays_open_until_it_is_flushed(leader: Any, world: Any) -> None:
    """A descriptor that was opened after the write might not hear of an error of the write."""
    leader.append(3)
    world.log.append_replicated(sent(leader), leader_epoch=EPOCH)
    handle = world.log.segments.active.log
    assert handle.pinned
    world.flush()
    assert not handle.pinned
