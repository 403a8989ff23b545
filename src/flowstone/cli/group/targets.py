"""Conversion of a reset's options to an offset for each partition.

Every offset is limited to the partition's range, as in Kafka's tool, so a group never gets an offset without records.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.numbers import OFFSET_MAX, PARTITION_MAX, parse_whole
from flowstone.cli.group.reading import GroupReader
from flowstone.types import TopicPartition

_HEADER = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class Target:
    """The possible targets of a reset, of which exactly one must be given."""

    to_earliest: bool = False
    to_latest: bool = False
    timestamp_ms: int | None = None
    shift_by: int | None = None
    offset: int | None = None

    @property
    def count(self) -> int:
        """Return how many targets were given."""
        numbers = (self.timestamp_ms, self.shift_by, self.offset)
        return self.to_earliest + self.to_latest + sum(number is not None for number in numbers)


@dataclass(frozen=True)
class Move:
    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int


def plan_moves(
    reader: GroupReader,
    partitions: Sequence[TopicPartition],
    target: Target,
    committed: Mapping[TopicPartition, int],
) -> list[Move]:
    bounds = reader.bounds(partitions)
    if target.timestamp_ms is not None:
        spec = OffsetSpec.for_timestamp(target.timestamp_ms)
        found = reader.offsets(partitions, spec)
        # -1 means no record at or after the time: the group continues at the end.
        wanted = {each: found[each] if found[each] >= 0 else bounds[each][1] for each in partitions}
    elif target.shift_by is not None:
        _check_committed(partitions, committed)
        wanted = {each: committed[each] + target.shift_by for each in partitions}
    elif target.offset is not None:
        wanted = dict.fromkeys(partitions, target.offset)
    else:
        wanted = {each: bounds[each][0 if target.to_earliest else 1] for each in partitions}
    return within_bounds(wanted, bounds, committed)


def within_bounds(
    wanted: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, tuple[int, int]],
    committed: Mapping[TopicPartition, int],
) -> list[Move]:
    return [
        Move(each.topic, each.partition, committed.get(each), min(max(offset, bounds[each][0]), bounds[each][1]))
        for each, offset in sorted(wanted.items())
    ]


def read_file(path: Path, group_id: str) -> dict[TopicPartition, int]:
    """Return the offsets in `topic,partition,offset` lines, as kafka-consumer-groups exports them.

    If lines start with a group, only those of this group are used.
    """
    wanted: dict[TopicPartition, int] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                cells = [cell.strip() for cell in row]
                if not any(cells) or (number == 1 and cells[-3:] == _HEADER):
                    continue
                if len(cells) == len(_HEADER) + 1:
                    if cells[0] != group_id:
                        continue
                    del cells[0]
                if len(cells) != len(_HEADER) or not (cells[1].isdecimal() and cells[2].isdecimal()):
                    raise CommandError(f"{path}, line {number}: expected topic,partition,offset")
                partition = parse_whole(f"{path}, line {number}:", cells[1], PARTITION_MAX, "a partition")
                offset = parse_whole(f"{path}, line {number}:", cells[2], OFFSET_MAX, "an offset")
                wanted[TopicPartition(cells[0], partition)] = offset
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"cannot read {path}: {reason}") from None
    if not wanted:
        raise CommandError(f"{path} has no offsets for group {group_id}")
    return wanted


def _check_committed(partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, int]) -> None:
    missing = next((each for each in partitions if each not in committed), None)
    if missing is not None:
        raise CommandError(
            f"nothing is committed in {missing}, and so there is nothing to shift: use --to-earliest, --to-latest, "
            "--to-timestamp or --to-offset"
        )
