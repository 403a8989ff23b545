"""What the files of a log directory say of a log's start and end, and which of them are believed."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.log.lifecycle.clean_stop_state import LeftLog
from flowstone.log.lifecycle.durable_extents import LOG_EXTENTS, Extent
from flowstone.log.lifecycle.extent_witnesses import (
    Witnesses,
    check_derived,
    check_end,
    check_start,
    find_missing,
)
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.segments.checkpoints import LOG_START_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from flowstone.types import TopicPartition

HERE, PATH = TopicPartition("t", 3), "/data/t-3"
TOPIC_ID, OTHER_ID = b"a" * 16, b"b" * 16


def witnesses(
    *,
    recovery_point: int | None = None,
    log_start: int | None = None,
    extent: tuple[int, int] | None = None,
    left: tuple[int, int] | None = None,
    clean: bool = False,
) -> Witnesses:
    """`extent` and `left` are start and end."""
    return Witnesses(
        {} if recovery_point is None else {HERE: recovery_point},
        {} if log_start is None else {HERE: log_start},
        {} if extent is None else {HERE: Extent(TOPIC_ID, *extent)},
        {} if left is None else {HERE: left_log(*left)},
        clean,
    )


def left_log(start: int, end: int) -> LeftLog:
    fields: dict[str, Any] = dict.fromkeys(LeftLog._fields)
    return LeftLog(**fields | {"topic_id": OTHER_ID, "log_start_offset": start, "end_offset": end})


# Which of the files are believed


def test_nothing_is_known_of_a_partition_that_no_file_names() -> None:
    assert witnesses().of(HERE) == StoredOffsets(0, 0, clean=False)
    assert witnesses(clean=True).of(HERE) == StoredOffsets(0, 0, clean=True)
    assert witnesses().topic_id_of(HERE) is None


def test_checkpoints_tell_where_a_log_starts_and_is_durable() -> None:
    found = witnesses(recovery_point=9, log_start=4).of(HERE)
    assert found == StoredOffsets(9, 4, clean=False, is_start_known=True, is_end_known=True)
    assert witnesses(recovery_point=9).of(HERE) == StoredOffsets(9, 0, clean=False, is_end_known=True)
    assert witnesses(log_start=4).of(HERE) == StoredOffsets(0, 4, clean=False, is_start_known=True)


def test_the_table_of_extents_knows_a_later_end_and_start() -> None:
    found = witnesses(recovery_point=9, log_start=4, extent=(5, 12)).of(HERE)
    assert found == StoredOffsets(9, 5, clean=False, durable_end=12, is_start_known=True, is_end_known=True)
    assert found.promised_end == 12
    alone = witnesses(extent=(5, 12)).of(HERE)
    assert alone == StoredOffsets(0, 5, clean=False, durable_end=12, is_start_known=True, is_end_known=True)


def test_a_table_that_is_older_than_the_checkpoints_is_not_believed() -> None:
    older = witnesses(recovery_point=9, log_start=6, extent=(5, 12)).of(HERE)
    assert (older.log_start_offset, older.durable_end) == (6, 0)
    same = witnesses(recovery_point=9, log_start=5, extent=(5, 12)).of(HERE)
    assert (same.log_start_offset, same.durable_end) == (5, 12)


@pytest.mark.parametrize(
    ("recovery_point", "log_start", "durable_end"),
    [(12, 5, 12), (13, 5, 0), (12, 4, 0), (None, 5, 12), (None, None, 12), (12, None, 0)],
)
def test_after_a_clean_stop_the_table_is_believed_if_it_says_what_the_checkpoints_say(
    recovery_point: int | None, log_start: int | None, durable_end: int
) -> None:
    found = witnesses(recovery_point=recovery_point, log_start=log_start, extent=(5, 12), clean=True).of(HERE)
    assert found.durable_end == durable_end


def test_what_a_clean_stop_left_stands_in_for_a_missing_checkpoint() -> None:
    found = witnesses(left=(3, 8), clean=True).of(HERE)
    assert found == StoredOffsets(8, 3, clean=True, is_start_known=True, is_end_known=True)
    both = witnesses(recovery_point=9, log_start=4, left=(3, 8), clean=True).of(HERE)
    assert (both.recovery_point, both.log_start_offset) == (9, 4)


def test_the_topic_id_is_the_tables_or_what_the_last_stop_left() -> None:
    assert witnesses(extent=(0, 1), left=(0, 1)).topic_id_of(HERE) == TOPIC_ID
    assert witnesses(left=(0, 1)).topic_id_of(HERE) == OTHER_ID


# Checks


def stored(recovery_point: int, log_start: int, **more: Any) -> StoredOffsets:
    return StoredOffsets(
        recovery_point, log_start, **{"clean": False, "is_start_known": True, "is_end_known": True} | more
    )


@pytest.mark.parametrize(
    ("bases", "known", "is_missing"),
    [
        ([4], stored(9, 4), False),
        ([3], stored(9, 4), False),
        ([5], stored(9, 4), True),
        ([5], stored(9, 4, is_start_known=False), False),
        ([], stored(9, 4), True),
        ([], stored(4, 4), False),
        ([], stored(5, 4), True),
        ([5], stored(4, 4), False),
        ([], stored(4, 4, is_end_known=False), False),
        ([5], stored(0, 4, is_end_known=False), False),
        ([5], stored(0, 4, is_end_known=False, clean=True), True),
        ([], stored(0, 4, is_end_known=False, clean=True), False),
        ([], stored(0, 4, durable_end=5), True),
    ],
)
def test_records_that_were_durable_at_the_start_must_be_there(
    bases: list[int], known: StoredOffsets, is_missing: bool
) -> None:
    if not is_missing:
        check_start(HERE, PATH, bases, known)
        return
    with pytest.raises(StorageFault) as fault:
        check_start(HERE, PATH, bases, known)
    witness = LOG_EXTENTS if known.durable_end else LOG_START_CHECKPOINT
    found = f"the first segment found begins at offset {bases[0]}" if bases else "no segment was found"
    assert f"t-3 begins at offset 4, says {witness}" in str(fault.value)
    assert found in str(fault.value)
    assert "flowstone log repair /data --topic t --partition 3" in str(fault.value)


@pytest.mark.parametrize(
    ("end_offset", "known", "witness"),
    [
        (9, stored(9, 0), None),
        (10, stored(9, 0), None),
        (8, stored(9, 0), RECOVERY_POINT_CHECKPOINT),
        (8, stored(9, 0, durable_end=9), RECOVERY_POINT_CHECKPOINT),
        (9, stored(9, 0, durable_end=10), LOG_EXTENTS),
        (10, stored(9, 0, durable_end=10), None),
    ],
)
def test_a_log_must_not_end_before_what_was_durable(end_offset: int, known: StoredOffsets, witness: str | None) -> None:
    if witness is None:
        check_end(HERE, PATH, end_offset, known)
        return
    with pytest.raises(StorageFault, match=f"t-3 ends at offset {end_offset}, .*says {witness}:"):
        check_end(HERE, PATH, end_offset, known)


UNKNOWN: dict[str, Any] = {"clean": True, "is_start_known": False, "is_end_known": False}


def epochs(*starts: int) -> LeaderEpochs:
    made = LeaderEpochs.decode(
        f"0\n{len(starts)}\n".encode() + b"".join(b"%d %d\n" % each for each in enumerate(starts))
    )
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("names", "starts", "known", "told"),
    [
        ([], (), UNKNOWN, None),
        ([], (4, 9), UNKNOWN, None),
        ([], (3, 9), UNKNOWN, "begins at offset 4, but leader-epoch-checkpoint begins at 3"),
        ([], (3, 9), UNKNOWN | {"is_start_known": True}, None),
        ([], (4, 10), UNKNOWN, "ends at offset 9, but leader-epoch-checkpoint goes up to 10"),
        ([], (4, 10), UNKNOWN | {"is_end_known": True}, None),
        ([], (3, 10), UNKNOWN | {"clean": False}, None),
        (["00000000000000000009.snapshot"], (), UNKNOWN, None),
        (
            ["00000000000000000010.snapshot", "00000000000000000008.snapshot", "other"],
            (),
            UNKNOWN,
            "ends at offset 9, but has a producer snapshot of 10",
        ),
        (["00000000000000000010.snapshot"], (), UNKNOWN | {"is_end_known": True}, None),
    ],
)
def test_after_a_clean_stop_without_checkpoints_other_files_tell_of_records_that_are_gone(
    names: list[str], starts: tuple[int, ...], known: dict[str, Any], told: str | None
) -> None:
    given = StoredOffsets(0, 0, **known)
    found = epochs(*starts) if starts else None
    if told is None:
        check_derived(HERE, PATH, names, found, 4, 9, given)
        return
    with pytest.raises(StorageFault, match=f"t-3 {told}: "):
        check_derived(HERE, PATH, names, found, 4, 9, given)


class Directory:
    """A log directory in which the deletion of some partitions has begun."""

    def __init__(self, *condemned: TopicPartition) -> None:
        self._condemned = {str(each) for each in condemned}

    def condemned_partitions(self) -> set[str]:
        return self._condemned

    def condemned_name(self, topic_partition: TopicPartition) -> str:
        return str(topic_partition)

    def file(self, name: str) -> str:
        return f"/data/{name}"


@pytest.mark.parametrize(
    ("known", "present", "directory", "is_missing"),
    [
        (witnesses(extent=(5, 12)), (), Directory(), True),
        (witnesses(left=(5, 12), clean=True), (), Directory(), True),
        (witnesses(extent=(5, 5)), (), Directory(), False),
        (witnesses(extent=(5, 6)), (), Directory(), True),
        (witnesses(extent=(5, 12)), (HERE,), Directory(), False),
        (witnesses(extent=(5, 12)), (), Directory(HERE), False),
        (witnesses(extent=(5, 12)), (), Directory(TopicPartition("t", 4)), True),
        (witnesses(recovery_point=9, log_start=4), (), Directory(), False),
    ],
)
def test_a_partition_that_had_records_must_have_a_directory_unless_it_is_being_deleted(
    known: Witnesses, present: tuple[TopicPartition, ...], directory: Any, is_missing: bool
) -> None:
    found = list(find_missing(known, directory, present))
    assert bool(found) is is_missing
    for topic_partition, offline in found:
        assert (topic_partition, offline.is_missing) == (HERE, True)
        assert offline.topic_id == known.topic_id_of(HERE)
        assert offline.stored == known.of(HERE)
        assert "t-3 has records from offset 5 to" in str(offline.fault)
        assert "its directory /data/t-3 is not there" in str(offline.fault)
