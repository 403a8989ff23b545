"""Pushdown of filters on topic, partition, offset and timestamp to the ranges that are read.

The module is pure. Spark still applies every filter to every row, so a bound may be too wide but never too narrow. A
lower bound on the timestamp is looked up as the first record at or after the time, before which no record can match. An
upper bound cannot be looked up, because producers may write an old timestamp late; it is used only if timestamps are
known not to decrease, for example with LogAppendTime.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark_flowstone.offsets import OffsetRange
from pyspark_flowstone.versions import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = TypeVar("Value", int, str)


@dataclass(frozen=True)
class Narrowing:
    """The values that can pass the filters; None means any. Upper bounds are exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_first: int = 0
    offset_end: int | None = None
    timestamp_first_ms: int | None = None
    timestamp_end_ms: int | None = None

    def keeps_partition(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def narrow(self, wanted: OffsetRange) -> OffsetRange:
        end = wanted.end if self.offset_end is None else min(wanted.end, self.offset_end)
        return wanted._replace(start=max(wanted.start, self.offset_first), end=end)


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    filters = list(filters)
    offset_first, offset_end = _bounds(filters, "offset", _whole)
    timestamp_first_ms, timestamp_end_ms = _bounds(filters, "timestamp", _milliseconds)
    return Narrowing(
        topics=_choice(filters, "topic", str),
        partitions=_choice(filters, "partition", int),
        offset_first=offset_first or 0,
        offset_end=offset_end,
        timestamp_first_ms=timestamp_first_ms,
        timestamp_end_ms=timestamp_end_ms,
    )


def _choice(filters: list[Filter], column: str, kind: type[Value]) -> frozenset[Value] | None:
    """Return the values of the column that all equality filters allow; None without such a filter."""
    chosen: frozenset[Value] | None = None
    for each in filters:
        if isinstance(each, EqualTo | EqualNullSafe | In) and each.attribute == (column,):
            values = each.value if isinstance(each, In) else (each.value,)
            allowed = frozenset(value for value in values if isinstance(value, kind))
            chosen = allowed if chosen is None else chosen & allowed
    return chosen


def _bounds(filters: list[Filter], column: str, whole: Any) -> tuple[int | None, int | None]:
    """Return the first value and the value after the last that all comparison filters on the column allow."""
    first: int | None = None
    end: int | None = None
    for each in filters:
        if getattr(each, "attribute", None) != (column,) or getattr(each, "value", None) is None:
            continue
        lowest: int | None = None
        limit: int | None = None
        if isinstance(each, EqualTo | EqualNullSafe):
            lowest, limit = whole(each.value)[0], whole(each.value)[1] + 1
        elif isinstance(each, GreaterThan):
            lowest = whole(each.value)[1] + 1
        elif isinstance(each, GreaterThanOrEqual):
            lowest = whole(each.value)[0]
        elif isinstance(each, LessThan):
            limit = whole(each.value)[0]
        elif isinstance(each, LessThanOrEqual):
            limit = whole(each.value)[1] + 1
        if lowest is not None:
            first = lowest if first is None else max(first, lowest)
        if limit is not None:
            end = limit if end is None else min(end, limit)
    return first, end


def _whole(value: int) -> tuple[int, int]:
    return value, value


def _milliseconds(value: datetime) -> tuple[int, int]:
    """Return the time in milliseconds, rounded up and rounded down: records have no finer timestamps."""
    microseconds = (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
    return -(-microseconds // 1000), microseconds // 1000
