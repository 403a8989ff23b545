"""Opening a log again after a stop, clean or not, on a disk that is whole or not (S1 to S5, S7)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.lifecycle.durable_extents import LOG_EXTENTS
from flowstone.log.partition.derived_state import read_epochs
from flowstone.wire.record_batch import parse_header


@pytest.fixture
def filled(world: Any) -> Any:
    return fill(world)


def fill(world: Any) -> Any:
    """Forty batches of two records in several segments; the first thirty are durable, twenty are checkpointed so."""
    for number in range(40):
        world.append(2, producer_id=1, producer_epoch=0, base_sequence=2 * number, epoch=number // 15)
        world.clock.advance(1)
        if number in (19, 29):
            world.flush()
        if number == 19:
            world.checkpoint()
    assert len(world.log.segments) > 4
    return world


def flip(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 0x40

    return change


def test_after_a_kill_everything_written_is_there(filled: Any) -> None:
    before = filled.read_all()
    filled.reopen()
    assert filled.read_all() == before
    assert filled.log.recovery_point == 80


def test_after_a_power_loss_everything_flushed_is_there(filled: Any) -> None:
    before = filled.read_all()
    filled.files.lose_power()
    filled.reopen()
    assert filled.read_all() == before[:30]
    assert filled.log.log_end_offset == 60


def test_what_recovery_leaves_survives_a_power_loss_at_once(filled: Any) -> None:
    filled.reopen()
    filled.files.lose_power()
    filled.reopen()
    assert filled.log.log_end_offset == 80


def test_a_log_is_opened_after_a_clean_stop_without_reading_records(filled: Any) -> None:
    before = filled.read_all()
    filled.stop_cleanly()
    for name in filled.names(".log"):
        filled.damage(name, flip(-1))  # in the last batch's records: nobody reads them
    filled.reopen(clean=True)
    assert filled.log.log_end_offset == 80
    assert [parse_header(batch) for batch in filled.read_all()] == [parse_header(batch) for batch in before]


def test_a_torn_tail_is_cut_at_the_last_whole_batch(filled: Any) -> None:
    last = filled.names(".log")[-1]
    filled.damage(last, lambda data: data.__delitem__(slice(-3, None)))
    filled.reopen()
    assert filled.log.log_end_offset == 78
    assert filled.append().base_offset == 78


def test_a_tail_of_zeros_is_cut(filled: Any) -> None:
    filled.damage(filled.names(".log")[-1], lambda data: data.extend(bytes(5000)))
    filled.reopen()
    assert filled.log.log_end_offset == 80


def sizes(world: Any) -> dict[str, int]:
    return {each: world.files.size(f"{world.path}/{each}") for each in world.names(".log")}


@pytest.mark.parametrize("offset", [50, 58, 64, 70, 76], ids=lambda offset: f"at {offset}")
@pytest.mark.parametrize("at", [16, 30, 65], ids=["magic", "header", "records"])
def test_damage_before_good_batches_takes_the_partition_offline_and_nothing_is_cut(
    filled: Any, offset: int, at: int
) -> None:
    position = filled.log.position_of(offset)
    filled.damage(f"{position.segment_base_offset:020d}.log", flip(position.position + at))
    before = sizes(filled)
    with pytest.raises(
        StorageFault, match=rf"is damaged at offset {offset}.*flowstone log repair /data --topic orders"
    ):
        filled.reopen()
    assert sizes(filled) == before


def test_the_last_batch_that_was_flushed_is_not_cut_even_if_nothing_follows_it(world: Any) -> None:
    world.append(2)
    world.checkpoint()
    world.append(2)
    world.flush()
    world.damage(world.names(".log")[-1], flip(-1 - unused(world)))
    with pytest.raises(StorageFault, match="is damaged at offset 2, below its recovery point 4"):
        world.reopen()


def unused(world: Any) -> int:
    """Zeros after the last batch."""
    active = world.log.segments.active
    return int(world.files.size(active.log.path)) - int(active.size_bytes)


@pytest.mark.parametrize("cut_bytes", [1, 200])
def test_a_file_that_was_flushed_and_is_cut_short_takes_the_partition_offline(world: Any, cut_bytes: int) -> None:
    for _ in range(3):
        world.append(2)
    world.flush()
    world.damage(world.names(".log")[-1], lambda data: data.__delitem__(slice(-cut_bytes - unused(world), None)))
    with pytest.raises(StorageFault):
        world.reopen()


def test_blocks_that_never_reached_the_disk_are_cut_with_what_follows_them(world: Any) -> None:
    """A power loss: of what was not flushed, later blocks reached the disk and earlier ones did not."""
    world.log.configure(TopicConfig())
    world.append(2, value_bytes=100)
    world.flush()
    for _ in range(3):
        world.append(2, value_bytes=1000)
    at = world.log.position_of(2).position
    begin = at + 1200 + -(at + 1200) % 512
    world.damage(world.names(".log")[-1], lambda data: data.__setitem__(slice(begin, begin + 512), bytes(512)))
    world.reopen()
    assert world.log.log_end_offset == 2


def test_a_segment_cut_short_by_a_power_loss_is_removed_with_those_after_it(filled: Any) -> None:
    position = filled.log.position_of(70)
    name = f"{position.segment_base_offset:020d}.log"
    filled.damage(name, lambda data: data.__delitem__(slice(position.position + 30, None)))
    filled.reopen()
    assert filled.log.log_end_offset == 70
    assert filled.names(".log")[-1] == name


@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean stop"])
@pytest.mark.parametrize("which", ["first", "second", "middle", "last", "all"])
def test_a_missing_segment_takes_the_partition_offline(filled: Any, which: str, clean: bool) -> None:
    if clean:
        filled.stop_cleanly()
    else:
        filled.flush()
    names = filled.names(".log")
    chosen = {"first": names[:1], "second": names[1:2], "middle": names[2:4], "last": names[-1:], "all": names}[which]
    for name in chosen:
        filled.files.remove(f"{filled.path}/{name}")
    with pytest.raises(StorageFault, match="flowstone log repair"):
        filled.reopen(clean=clean)
    assert filled.names(".log") == [name for name in names if name not in chosen]


@pytest.mark.parametrize("lost", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint", "both"])
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_what_is_derived_from_a_log_tells_of_a_missing_segment_when_checkpoints_are_gone(
    filled: Any, lost: str, which: int
) -> None:
    filled.stop_cleanly()
    filled.files.remove(f"/data/{LOG_EXTENTS}")
    for name in ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"):
        if lost in (name, "both"):
            filled.files.remove(f"/data/{name}")
    filled.files.remove(f"{filled.path}/{filled.names('.log')[which]}")
    with pytest.raises(StorageFault):
        filled.reopen(clean=True)


def test_a_start_that_moved_without_its_segments_going_is_no_damage(filled: Any) -> None:
    filled.log.advance_log_start(33)
    filled.checkpoint()
    filled.log.drop_segments()
    filled.files.sync_directory(filled.path)
    filled.files.lose_power()
    filled.reopen()
    assert filled.log.log_start_offset == 33


def test_a_log_that_was_reset_to_a_later_offset_is_no_damage(filled: Any) -> None:
    filled.flush()
    filled.checkpoint()
    filled.reset_to(500)
    filled.append(2)
    assert filled.reopen().log_end_offset == 502
    filled.reset_to(900)
    filled.append(2)
    filled.flush()
    assert filled.reopen().log_start_offset == 900


def test_damage_below_the_recovery_point_is_a_fault_and_nothing_is_cut(filled: Any) -> None:
    position = filled.log.position_of(38)
    name = f"{position.segment_base_offset:020d}.log"
    filled.damage(name, flip(position.position + 7))
    before = sizes(filled)
    with pytest.raises(StorageFault, match="orders-3 is damaged at offset 38, below its recovery point 60"):
        filled.reopen()
    assert sizes(filled) == before


def test_damage_in_an_unchecked_segment_is_a_fault_when_it_is_read(filled: Any) -> None:
    filled.damage(filled.names(".log")[0], flip(16))
    filled.reopen()
    with pytest.raises(StorageFault):
        filled.read_batch(0)
    assert filled.log.log_end_offset == 80


def test_a_log_shorter_than_its_recovery_point_is_a_fault(filled: Any) -> None:
    for segment in filled.log.segments:
        if segment.base_offset >= 20:
            filled.files.remove(segment.log.path)
    with pytest.raises(
        StorageFault,
        match=r"ends at offset 36, but was durable up to offset 60, says .flowstone-log-extents: files are",
    ):
        filled.reopen()


def test_a_directory_without_any_segment_is_a_fault_if_there_was_something(filled: Any) -> None:
    for name in filled.names(".log"):
        filled.files.remove(f"{filled.path}/{name}")
    with pytest.raises(StorageFault, match=r"begins at offset 0, .* has records up to 60, but no segment was found"):
        filled.reopen()


def test_damage_after_a_clean_stop_is_never_taken_for_an_unfinished_write(filled: Any) -> None:
    filled.stop_cleanly()
    filled.damage(filled.names(".log")[-1], lambda data: data.__delitem__(slice(-3, None)))
    with pytest.raises(StorageFault):
        filled.reopen(clean=True)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("clean", [False, True], ids=["after a kill", "after a clean stop"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "flipped", "longer"])
def test_whatever_follows_from_the_log_can_be_lost(filled: Any, suffix: str, clean: bool, how: str) -> None:
    before, epochs = filled.read_all(), filled.log.epochs.entries()
    if clean:
        filled.stop_cleanly()
    else:
        filled.flush()
    changes: dict[str, Callable[[bytearray], None]] = {
        "empty": bytearray.clear,
        "cut": lambda data: data.__delitem__(slice(len(data) // 2, None)),
        "flipped": lambda data: flip(len(data) // 2)(data) if data else None,
        "longer": lambda data: data.extend(b"\x00\x01" * 60),
    }
    for name in filled.names(suffix):
        if how == "gone":
            filled.files.remove(f"{filled.path}/{name}")
        else:
            filled.damage(name, changes[how])
    filled.reopen(clean=clean)
    assert filled.read_all() == before
    assert read_epochs(filled.log.directory) == filled.log.epochs.encode()
    assert filled.append(producer_id=1, producer_epoch=0, base_sequence=80, epoch=2).base_offset == 80
    if how != "flipped":  # a digit of the text may become another digit
        assert filled.log.epochs.entries() == epochs


def test_deleted_records_stay_deleted(filled: Any) -> None:
    filled.log.advance_log_start(33)
    filled.checkpoint()
    filled.log.drop_segments()
    filled.reopen()
    assert filled.log.log_start_offset == 33
    assert filled.log.log_end_offset == 80
    assert not filled.names(".deleted")


def test_segments_below_the_logs_start_go_at_the_next_start(filled: Any) -> None:
    filled.log.advance_log_start(33)
    filled.checkpoint()
    filled.reopen()
    assert filled.log.segments[0].base_offset <= 33 < filled.log.segments[1].base_offset


def test_offsets_are_not_given_twice_when_everything_was_deleted_and_then_lost(world: Any) -> None:
    world.append(5)
    world.flush()
    world.append(5)
    world.log.advance_log_start(10)
    world.checkpoint()
    world.files.lose_power()
    world.reopen()
    assert (world.log.log_start_offset, world.append().base_offset) == (10, 10)


@pytest.mark.parametrize("operation", ["remove", "truncate", "write", "sync", "rename", "sync_directory"])
def test_recovery_that_dies_at_any_call_can_be_run_again(make_world: Callable[[], Any], operation: str) -> None:
    died = True
    survived_calls = 0
    while died:
        world = fill(make_world())
        position = world.log.position_of(70)
        name, end = f"{position.segment_base_offset:020d}.log", position.position + 30
        world.damage(name, lambda data, end=end: data.__delitem__(slice(end, None)))
        world.damage("leader-epoch-checkpoint", bytearray.clear)
        world.files.fail_next(operation, errno.EIO, after=survived_calls)
        try:
            world.reopen()
            died = False
        except (StorageFault, OSError):
            survived_calls += 1
        world.files.fail_nothing()
        world.reopen()
        assert world.log.log_end_offset == 70
        assert len(world.read_all()) == 35
    assert survived_calls > 0


def test_an_empty_directory_is_an_empty_log(world: Any) -> None:
    world.files.make_directory(world.path)
    world.reopen()
    assert world.log.log_end_offset == 0
    assert world.append().base_offset == 0


def test_a_log_that_goes_on_after_recovery_rolls_and_flushes_as_ever(filled: Any) -> None:
    filled.reopen()
    for number in range(40, 80):
        filled.append(2, producer_id=1, producer_epoch=0, base_sequence=2 * number)
    filled.flush()
    filled.checkpoint()
    filled.files.lose_power()
    filled.reopen()
    assert filled.log.log_end_offset == 160
    assert len(filled.read_all()) == 80


def test_what_producers_did_beyond_a_cut_does_not_come_back_beside_other_records(world: Any) -> None:
    """Of what came after the cut the kernel has written the records, but no names."""
    for number in range(5):
        world.append(producer_id=1, producer_epoch=0, base_sequence=number)
    world.log.roll()
    world.append()
    world.flush()
    world.truncate_to(4)
    world.append(2, epoch=1, producer_id=2, producer_epoch=0, base_sequence=0)
    world.files.open(world.log.segments.active.log.path).sync()
    world.files.lose_power()
    world.reopen()
    assert world.log.log_end_offset == 6
    assert len(world.log.producers) == 2
    assert world.append(producer_id=1, producer_epoch=0, base_sequence=4).base_offset == 6


def test_a_damaged_segment_right_below_the_recovery_point_is_not_cut(world: Any) -> None:
    """Where its last batch ends cannot be told."""
    for _ in range(5):
        world.append(2)
    world.log.roll()
    world.flush()
    world.checkpoint()
    size_bytes = world.log.segments[0].size_bytes
    world.damage(world.names(".log")[0], lambda data: data.__setitem__(16, 9))
    for name in world.names("index"):
        world.files.remove(f"{world.path}/{name}")
    with pytest.raises(StorageFault, match="at position 0"):
        world.reopen()
    assert len(world.files.read(f"{world.path}/{world.names('.log')[0]}")) == size_bytes
