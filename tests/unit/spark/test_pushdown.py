from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from flowstone.types import TopicPartition
from pyspark_flowstone.offsets import OffsetRange
from pyspark_flowstone.pushdown import Narrowing, narrowing


def at(microseconds):
    return datetime.fromtimestamp(0, UTC).replace(
        second=microseconds // 1_000_000, microsecond=microseconds % 1_000_000
    )


def test_filters_on_other_columns_and_of_other_kinds_leave_everything():
    filters = [EqualTo(("value",), b"x"), Not(EqualTo(("partition",), 1)), IsNotNull(("timestamp",))]
    assert narrowing(filters) == Narrowing()


def test_partitions_and_topics_are_chosen_by_every_equality():
    found = narrowing([In(("partition",), (1, 2)), EqualTo(("partition",), 2), EqualTo(("topic",), "a")])
    assert found.keeps_partition("a", 2)
    assert not found.keeps_partition("a", 1)
    assert not found.keeps_partition("b", 2)


def test_the_narrowest_bounds_on_offsets_count():
    filters = [GreaterThan(("offset",), 4), GreaterThanOrEqual(("offset",), 3), LessThanOrEqual(("offset",), 8)]
    whole = OffsetRange(TopicPartition("a", 0), 0, 100)
    assert narrowing(filters).narrow(whole) == OffsetRange(TopicPartition("a", 0), 5, 9)


def test_an_offset_that_equals_a_value_is_that_one():
    assert narrowing([EqualTo(("offset",), 7)]).narrow(OffsetRange(TopicPartition("a", 0), 0, 9))[1:3] == (7, 8)


def test_times_within_a_millisecond_are_rounded_to_what_records_can_have():
    found = narrowing([GreaterThanOrEqual(("timestamp",), at(5001)), LessThan(("timestamp",), at(8001))])
    assert (found.timestamp_first_ms, found.timestamp_end_ms) == (6, 9)


def test_a_time_on_the_millisecond_is_in_or_out_as_the_comparison_says():
    assert narrowing([GreaterThan(("timestamp",), at(5000))]).timestamp_first_ms == 6
    assert narrowing([GreaterThanOrEqual(("timestamp",), at(5000))]).timestamp_first_ms == 5
    assert narrowing([LessThan(("timestamp",), at(5000))]).timestamp_end_ms == 5
    assert narrowing([LessThanOrEqual(("timestamp",), at(5000))]).timestamp_end_ms == 6
