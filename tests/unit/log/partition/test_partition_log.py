from __future__ import annotations

import contextlib
import dataclasses
import errno
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.timestamps import first_record_at
from flowstone.types import ZERO_UUID
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    Codec,
    Record,
    build_batch,
    checksum_matches,
    decode_records,
    encode_header,
    parse_header,
)


@pytest.fixture
def filled(world: Any) -> Any:
    """Thirty batches of two records over several segments."""
    for _ in range(30):
        world.append(2)
        world.clock.advance(1)
    assert len(world.log.segments) > 3
    return world


# Appending


def test_offsets_follow_one_another(world: Any) -> None:
    assert [world.append(count).base_offset for count in (1, 3, 2)] == [0, 1, 4]
    assert world.log.log_end_offset == 6


def test_a_batch_is_stored_with_its_offset_and_leader_epoch_and_is_otherwise_untouched(world: Any) -> None:
    world.append(5)
    sent = world.batch(2)
    world.log.append(sent, leader_epoch=7)
    stored = world.read_batch(5)
    assert parse_header(stored)[:3] == (5, len(sent) - 12, 7)
    assert stored[16:] == sent[16:]


def test_nothing_is_on_disk_before_the_first_append(world: Any) -> None:
    assert not world.files.exists(world.path)
    assert world.log.read(0, 100, world.log.end, at_least_one=True) is None
    world.append()
    assert world.files.read(f"{world.path}/partition.metadata").startswith(b"version: 0\ntopic_id: AAEC")


def test_the_topic_id_is_durable_with_the_first_durable_records(world: Any) -> None:
    world.append()
    before = world.files.read(f"{world.path}/partition.metadata")
    world.flush()
    world.files.lose_power()
    assert world.files.read(f"{world.path}/partition.metadata") == before


def test_a_batch_of_our_own_is_taken_as_it_is(world: Any) -> None:
    world.log.configure(dataclasses.replace(world.config, message_timestamp_type="LogAppendTime"))
    own = world.batch(2)
    world.log.append(own, leader_epoch=7, is_own=True)
    assert world.read_batch(0)[16:] == own[16:]


def test_a_refused_batch_leaves_no_trace(world: Any) -> None:
    with pytest.raises(ApiError):
        world.log.append(world.batch()[:-1] + b"\xff", leader_epoch=0)
    assert world.log.log_end_offset == 0
    assert not world.files.exists(world.path)


def test_log_append_time_is_stored_and_reported(world: Any) -> None:
    world.log.configure(dataclasses.replace(world.config, message_timestamp_type="LogAppendTime"))
    appended = world.append(3, timestamp=5)
    assert appended.log_append_time_ms == world.clock.time_ms()
    stored = world.read_batch(0)
    assert checksum_matches(stored, 0, parse_header(stored))
    assert {record.timestamp for record in decode_records(stored)} == {world.clock.time_ms()}


def test_create_time_is_reported_as_minus_one(world: Any) -> None:
    assert world.append().log_append_time_ms == -1


@pytest.mark.parametrize("producer_id", [0, 4])
def test_a_batch_sent_twice_is_stored_once(world: Any, producer_id: int) -> None:
    sent = world.batch(3, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    first = world.log.append(sent, leader_epoch=0)
    world.append()
    again = world.log.append(sent, leader_epoch=0)
    assert again == first._replace(duplicate=True)
    assert world.log.log_end_offset == 4


def test_a_lost_batch_is_noticed(world: Any) -> None:
    world.append(3, producer_id=4, producer_epoch=0, base_sequence=0)
    with pytest.raises(ApiError) as refused:
        world.append(producer_id=4, producer_epoch=0, base_sequence=4)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# Failing writes


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_the_batch_and_takes_the_next_when_there_is_space(world: Any, number: int) -> None:
    world.append()
    world.files.fail_next("write", number)
    with pytest.raises(ApiError) as refused:
        world.append()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert world.append().base_offset == 1
    assert len(world.read_all()) == 2


def test_a_full_disk_at_the_roll_leaves_the_log_usable(world: Any) -> None:
    while world.log.segments[-1].size_bytes < 1400:
        world.append()
    end = world.log.log_end_offset
    for _ in range(4):
        world.files.fail_next("write", errno.ENOSPC)
        with pytest.raises(ApiError):
            world.append(value_bytes=200)
    assert world.append(value_bytes=200).base_offset == end
    assert len(world.log.segments) == 2
    assert len(world.read_all()) == end + 1


def test_a_full_disk_leaves_no_outdated_epochs(world: Any) -> None:
    """They would be trusted at the next start; those that are missing are derived from the log."""
    path = f"{world.path}/leader-epoch-checkpoint"
    world.append(epoch=1)
    world.flush()
    assert world.files.exists(path)
    world.append(epoch=2)
    world.files.fail_next("write", errno.ENOSPC)
    world.flush()
    assert not world.files.exists(path)


def test_half_a_batch_is_taken_back(world: Any) -> None:
    world.append()
    size = world.log.size_bytes
    file = world.log.segments[-1].log.get()
    file.write(size, [b"half"])
    world.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError):
        world.append()
    assert file.size() == size


def test_a_disk_error_is_a_fault(world: Any) -> None:
    world.append()
    world.files.fail_next("write", errno.EIO)
    with pytest.raises(StorageFault, match="orders-3"):
        world.append()


def test_a_write_that_cannot_be_taken_back_is_a_fault(world: Any) -> None:
    world.append()
    world.files.fail_next("write", errno.ENOSPC)
    world.files.fail_next("truncate", errno.EIO)
    with pytest.raises(StorageFault, match="undoing"):
        world.append()


def test_a_first_append_that_finds_no_space_for_the_log_file_is_repaired_by_the_next(world: Any) -> None:
    world.files.fail_next("open", errno.ENOSPC, after=1)  # partition.metadata comes first
    with pytest.raises(ApiError):
        world.append()
    assert world.append().base_offset == 0


@pytest.mark.parametrize("opened_before", range(5))
def test_a_broker_out_of_descriptors_refuses_the_batch_and_takes_it_later(world: Any, opened_before: int) -> None:
    """Whichever of the files it is that cannot be opened: a first append's, or a roll's."""
    for _ in range(2):
        world.files.fail_next("open", errno.EMFILE, after=opened_before)
        while world.files._failures["open"]:
            with contextlib.suppress(ApiError):  # a StorageFault would be for good
                world.append(value_bytes=200)
    assert len(world.read_all()) == world.log.log_end_offset


def test_a_broker_out_of_descriptors_refuses_a_read_and_the_log_is_well(filled: Any) -> None:
    filled.log.close()
    filled.files.fail_next("open", errno.EMFILE)
    with pytest.raises(ApiError) as refused:
        filled.read_batch(0)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert filled.read_batch(0)


# Reading


def test_every_offset_leads_to_the_batch_that_holds_it(filled: Any) -> None:
    for offset in range(60):
        header = parse_header(filled.read_batch(offset))
        assert header.base_offset <= offset <= header.last_offset


def test_a_slice_holds_as_many_bytes_as_asked_for(filled: Any) -> None:
    found = filled.log.read(0, 300, filled.log.end, at_least_one=True)
    assert len(found) == 300
    assert found.read() == b"".join(filled.read_all())[:300]


def test_a_slice_does_not_leave_its_segment(filled: Any) -> None:
    found = filled.log.read(0, 1 << 20, filled.log.end, at_least_one=True)
    assert len(found) == filled.log.segments[0].size_bytes


def test_a_slice_ends_where_visibility_ends(filled: Any) -> None:
    until = filled.log.position_of(6)
    found = filled.log.read(2, 1 << 20, until, at_least_one=True)
    assert [parse_header(found.read(), at).base_offset for at in (0, len(found) // 2)] == [2, 4]
    assert filled.log.read(6, 1 << 20, until, at_least_one=True) is None


def test_a_batch_above_the_limit_comes_whole_or_not_at_all(filled: Any) -> None:
    assert filled.log.read(0, 10, filled.log.end, at_least_one=False) is None
    assert filled.log.read(0, 10, filled.log.end, at_least_one=True).read() == filled.read_all()[0]


def test_the_end_of_the_log_reads_as_nothing(filled: Any) -> None:
    assert filled.log.read(60, 100, filled.log.end, at_least_one=True) is None


@pytest.mark.parametrize("offset", [3, 61, -1])
def test_offsets_the_log_does_not_have_are_refused(filled: Any, offset: int) -> None:
    filled.log.advance_log_start(4)
    with pytest.raises(ApiError) as refused:
        filled.log.read(offset, 100, filled.log.end, at_least_one=True)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_reading_changes_no_byte_on_disk(filled: Any) -> None:
    filled.stop_cleanly()
    filled.reopen(clean=True)
    before = {name: filled.files.read(f"{filled.path}/{name}") for name in filled.names()}
    filled.read_all()
    filled.log.find_timestamp(0)
    filled.log.max_timestamp()
    assert {name: filled.files.read(f"{filled.path}/{name}") for name in filled.names()} == before


def test_a_damaged_header_is_a_fault_that_names_the_file(filled: Any) -> None:
    filled.damage(filled.names(".log")[0], lambda data: data.__setitem__(16, 9))
    with pytest.raises(StorageFault, match=r"orders-3.*00000000000000000000\.log"):
        filled.read_batch(0)


def test_a_slice_outlives_its_segment(filled: Any) -> None:
    found = filled.log.read(0, 100, filled.log.end, at_least_one=True)
    before = found.read()
    filled.log.advance_log_start(40)
    for path in filled.log.drop_segments():
        filled.files.remove(path)
    assert found.read() == before


# Rolling


def test_a_segment_that_would_grow_too_large_is_followed_by_another(world: Any) -> None:
    while len(world.log.segments) == 1:
        world.append()
    assert world.log.segments[0].size_bytes <= world.config.segment_bytes
    assert world.log.segments[1].base_offset == world.log.log_end_offset - 1


def test_time_rolls_count_from_the_first_batchs_timestamp(world: Any) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_ms=10_000))
    start = world.clock.time_ms()
    for later in (0, 10_000, 10_001):
        world.append(timestamp=start + later)
    assert [segment.base_offset for segment in world.log.segments] == [0, 2]


def test_jitter_makes_partitions_roll_earlier_and_apart(world: Any) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_ms=10_000, segment_jitter_ms=5_000))
    assert 5_000 < world.log.store.roll_ms < 10_000


def test_a_full_index_ends_its_segment(world: Any) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_bytes=1 << 20, segment_index_bytes=5 * 8))
    for _ in range(100):
        world.append()
    assert len(world.log.segments) > 5
    assert all(world.files.size(f"{world.path}/{name}") <= 40 for name in world.names(".index"))


def test_a_roll_leaves_indexes_and_a_snapshot_as_kafka_names_them(world: Any) -> None:
    while len(world.log.segments) == 1:
        world.append()
    base = world.log.segments[1].base_offset
    assert world.names() == sorted(
        [
            "00000000000000000000.index",
            "00000000000000000000.log",
            "00000000000000000000.timeindex",
            f"{base:020d}.log",
            f"{base:020d}.snapshot",
            "partition.metadata",
        ]
    )


def test_the_two_newest_snapshots_are_kept_when_the_log_is_flushed(filled: Any) -> None:
    filled.flush()
    newest = [f"{segment.base_offset:020d}.snapshot" for segment in filled.log.segments[-2:]]
    assert filled.names(".snapshot") == newest


# Time


def test_the_first_record_at_or_after_a_time_is_found(filled: Any) -> None:
    records = [record for batch in filled.read_all() for record in decode_records(batch)]
    for record in records:
        found = filled.log.find_timestamp(record.timestamp)
        assert first_record_at(found.read(), record.timestamp) == (record.offset, record.timestamp)


def test_a_time_after_the_last_record_finds_nothing(filled: Any) -> None:
    assert filled.log.find_timestamp(filled.clock.time_ms() + 1000) is None


def test_records_before_the_logs_start_are_not_found(filled: Any) -> None:
    filled.log.advance_log_start(5)
    found = filled.log.find_timestamp(0)
    assert first_record_at(found.read(), 0, filled.log.log_start_offset)[0] == 5


def test_records_stamped_by_the_broker_are_all_as_old_as_their_batch(world: Any) -> None:
    world.config = dataclasses.replace(world.config, message_timestamp_type="LogAppendTime")
    world.log.configure(world.config)
    world.append(3, timestamp=5)
    batch, now_ms = world.read_batch(0), world.clock.time_ms()
    assert first_record_at(batch, 6, 1) == (1, now_ms)
    assert first_record_at(batch, now_ms + 1) is None


def test_a_record_whose_time_does_not_fit_is_as_late_as_can_be(world: Any) -> None:
    """Compressed batches are stored unopened, whatever their records claim."""
    batch = build_batch([Record(0, 0, b"k", b"v"), Record(1, 2**63 - 1, b"k", b"v")], codec=Codec.GZIP)
    header = parse_header(batch)._replace(base_timestamp=10, max_timestamp=10)
    batch = encode_header(header, batch[HEADER_BYTES:]) + batch[HEADER_BYTES:]
    assert first_record_at(batch, 11) == (1, 2**63 - 1)


def test_the_newest_record_is_found_wherever_it_lies(filled: Any) -> None:
    newest = filled.clock.time_ms() + 50_000
    filled.append(timestamp=newest)
    filled.append()
    timestamp, found = filled.log.max_timestamp()
    assert (timestamp, first_record_at(found.read(), timestamp)) == (newest, (60, newest))


def test_an_empty_log_has_no_newest_record(world: Any) -> None:
    assert world.log.max_timestamp() is None


# Leader epochs


def test_an_epoch_ends_where_the_next_one_began(world: Any) -> None:
    for epoch in (0, 0, 2, 5):
        world.append(2, epoch=epoch)
    assert [world.log.end_offset_for_epoch(epoch) for epoch in (0, 2, 3, 5, 6)] == [
        (0, 4),
        (2, 6),
        (2, 6),
        (5, 8),
        (-1, -1),
    ]


# Flushing


def test_nothing_is_durable_before_a_flush_and_everything_after(world: Any) -> None:
    world.append(3)
    assert world.log.recovery_point == 0
    world.flush()
    assert world.log.flushed_end == world.log.end
    assert world.log.durability.take_dirty() is None


def test_a_flush_covers_what_was_there_when_it_began(world: Any) -> None:
    world.append(3)
    task = world.log.durability.take_dirty()
    world.append(4)
    task.run()
    world.log.durability.flushed(task)
    assert world.log.recovery_point == 3
    assert world.log.durability.take_dirty().end.offset == 7


def test_a_flush_that_a_truncation_overtook_counts_for_nothing(world: Any) -> None:
    world.append(3)
    world.append(3)
    task = world.log.durability.take_dirty()
    world.truncate_to(3)
    world.append(1)
    task.run()
    world.log.durability.flushed(task)
    assert world.log.recovery_point == 0


# Losing records on purpose


def test_truncation_drops_the_batch_that_holds_the_offset_and_all_after(filled: Any) -> None:
    before = filled.read_all()
    filled.truncate_to(21)
    assert filled.log.log_end_offset == 20
    assert filled.read_all() == before[:10]
    assert filled.append().base_offset == 20


def test_truncation_forgets_what_producers_and_leaders_did_after(world: Any) -> None:
    for sequence in range(40):
        world.append(producer_id=1, producer_epoch=0, base_sequence=sequence, epoch=sequence // 10)
    world.truncate_to(15)
    assert world.log.epochs.entries() == [(0, 0), (1, 10)]
    assert world.append(producer_id=1, producer_epoch=0, base_sequence=15, epoch=4).base_offset == 15


def test_truncation_of_the_batch_that_holds_the_log_start_leaves_an_empty_log_that_goes_on_there(world: Any) -> None:
    world.append(3)
    world.append(10)
    world.flush()
    world.log.advance_log_start(5)
    world.truncate_to(7)
    assert (world.log.log_start_offset, world.log.log_end_offset) == (5, 5)
    assert world.names(".log") == ["00000000000000000005.log"]
    assert world.log.read(5, 100, world.log.end, at_least_one=True) is None
    assert world.append(2).base_offset == 5
    assert len(world.read_all()) == 1


@pytest.mark.parametrize("power_is_lost", [False, True])
def test_an_emptied_log_goes_on_at_its_start_after_a_crash(world: Any, power_is_lost: bool) -> None:
    world.append(10)
    world.flush()
    world.log.advance_log_start(5)
    world.truncate_to(5)
    if power_is_lost:
        world.flush()
        world.files.lose_power()
    world.reopen()
    assert (world.log.log_start_offset, world.log.log_end_offset) == (5, 5)
    assert world.append().base_offset == 5


def test_a_crash_after_a_truncation_inside_a_batch_is_no_damage(filled: Any) -> None:
    filled.truncate_to(21)
    assert filled.reopen().log_end_offset == 20


def test_deleted_records_take_their_whole_segments_with_them(filled: Any) -> None:
    third = filled.log.segments[2].base_offset
    filled.log.advance_log_start(third + 1)
    paths = filled.log.drop_segments()
    assert filled.log.segments[0].base_offset == third
    assert len(paths) == 6
    assert all(path.endswith(".deleted") and filled.files.exists(path) for path in paths)


def test_the_log_start_never_goes_back(filled: Any) -> None:
    assert filled.log.advance_log_start(10)
    assert not filled.log.advance_log_start(5)
    assert filled.log.log_start_offset == 10


def test_a_log_without_a_known_topic_is_claimed(world: Any) -> None:
    world.append()
    world.log.topic_id = ZERO_UUID
    world.log.claim(b"x" * 16)
    world.flush()
    assert b"eHh4" in world.files.read(f"{world.path}/partition.metadata")


def test_settings_can_change_while_the_log_is_open(world: Any) -> None:
    world.append()
    world.log.configure(TopicConfig(max_message_bytes=70))
    with pytest.raises(ApiError) as refused:
        world.append()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_cut_reads_no_segment_that_lies_before_the_newest_snapshot_of_producers(world: Any) -> None:
    while len(world.log.segments) < 4:
        world.append(producer_id=1, producer_epoch=0, base_sequence=world.log.log_end_offset)
    world.damage(world.names(".log")[0], lambda data: data.__setitem__(16, 9))
    end_offset = world.log.log_end_offset
    world.truncate_to(end_offset - 1)
    assert world.append(producer_id=1, producer_epoch=0, base_sequence=end_offset - 1).base_offset == end_offset - 1


def test_a_flush_under_way_does_not_raise_a_recovery_point_that_was_lowered_meanwhile(world: Any) -> None:
    world.append()
    end = world.log.end
    world.append()
    flush = world.log.durability.take_dirty()
    world.log.durability.lower(end)
    flush.run()
    assert world.log.durability.flushed(flush) == 0
    assert world.log.recovery_point == 0


@pytest.mark.parametrize("producer_id", [0, 7])
@pytest.mark.parametrize("through", ["a cut", "a crash"])
def test_what_a_producer_wrote_last_is_known_after(world: Any, through: str, producer_id: int) -> None:
    for sequence in range(4):
        world.append(producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    world.append()
    if through == "a cut":
        world.truncate_to(4)
    else:
        world.reopen()
    assert world.append(producer_id=producer_id, producer_epoch=0, base_sequence=3).duplicate


def test_a_flush_while_the_recovery_point_is_held_does_not_raise_it(world: Any) -> None:
    world.append()
    world.flush()
    end = world.log.end
    world.append()
    with world.log.durability.held(end):
        flush = world.log.durability.take_dirty()
        flush.run()
        assert world.log.durability.flushed(flush) == 0
    assert world.log.recovery_point == 1
