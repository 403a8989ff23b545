from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.types import TopicPartition
from pyspark_flowstone.offsets import (
    OffsetRange,
    from_json,
    limit_bytes,
    limit_offsets,
    ranges_between,
    split,
    to_json,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
PARTITIONS = [TopicPartition("t", number) for number in range(5)]
ranges = st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(st.integers(0, 50), st.integers(0, 1000)), min_size=1)


def test_offsets_are_written_as_the_kafka_connector_writes_them():
    offsets = {B0: 7, TopicPartition("a", 10): 2, A1: 1}
    assert json.dumps(to_json(offsets), separators=(",", ":")) == '{"a":{"1":1,"10":2},"b":{"0":7}}'


def test_offsets_are_the_same_after_a_round_trip():
    assert from_json(json.loads(json.dumps(to_json({A0: 5, B0: 0}))), floor=0) == {A0: 5, B0: 0}


@pytest.mark.parametrize(
    "value", [[], {"a": 1}, {"a": {"x": 1}}, {"a": {"0": "1"}}, {"a": {"0": True}}, {"a": {"0": 1.5}}, {"a": {"0": -3}}]
)
def test_what_is_no_offsets_is_refused(value):
    with pytest.raises(ValueError, match=r".+"):
        from_json(value, floor=-2)


def test_partitions_with_nothing_to_read_have_no_range():
    assert ranges_between({A0: 3, A1: 4, B0: 9}, {A0: 3, A1: 6, B0: 8}) == [OffsetRange(A1, 4, 6)]


@given(ranges, st.integers(1, 40), st.none() | st.integers(1, 300))
def test_the_parts_of_ranges_are_the_ranges(wanted, parts_min, offsets_max):
    whole = [OffsetRange(each, start, start + count) for each, (start, count) in sorted(wanted.items()) if count]
    parts = split(whole, parts_min=parts_min, offsets_max=offsets_max)
    offsets = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
    assert offsets == [(each.partition, offset) for each in whole for offset in range(each.start, each.end)]
    assert all(part.offset_count for part in parts)
    if offsets_max is not None:
        assert all(part.offset_count <= offsets_max for part in parts)


def test_a_long_range_is_cut_into_as_many_parts_as_were_asked_for():
    assert [part.offset_count for part in split([OffsetRange(A0, 0, 1000)], parts_min=4)] == [250] * 4


def test_the_longer_of_two_ranges_is_cut_more_often():
    parts = split([OffsetRange(A0, 0, 900), OffsetRange(A1, 0, 100)], parts_min=10)
    assert [part.partition for part in parts] == [A0] * 9 + [A1]


def test_a_range_of_three_offsets_has_at_most_three_parts():
    assert len(split([OffsetRange(A0, 5, 8)], parts_min=10)) == 3


@given(ranges, st.integers(1, 2000))
def test_a_limit_is_kept_to_the_offset(wanted, offsets_max):
    start = {each: first for each, (first, _) in wanted.items()}
    end = {each: first + count for each, (first, count) in wanted.items()}
    limited = limit_offsets(start, end, offsets_max)
    total = sum(end.values()) - sum(start.values())
    assert sum(limited.values()) - sum(start.values()) == min(total, offsets_max)
    assert all(start[each] <= limited[each] <= end[each] for each in end)


def test_a_limit_shares_out_in_proportion():
    assert limit_offsets({A0: 0, A1: 10}, {A0: 900, A1: 110}, 100) == {A0: 90, A1: 20}


def test_a_partition_that_went_back_is_not_moved_by_a_limit():
    assert limit_offsets({A0: 0, A1: 50}, {A0: 100, A1: 5}, 10) == {A0: 10, A1: 5}


def test_a_limit_in_bytes_goes_by_the_size_of_records():
    end = limit_bytes({A0: 0, B0: 0}, {A0: 1000, B0: 1000}, 55_000, {A0: 100.0, B0: 10.0})
    assert end == {A0: 500, B0: 500}


def test_a_record_larger_than_the_limit_in_bytes_is_read_all_the_same():
    assert limit_bytes({A0: 0, B0: 5}, {A0: 10, B0: 7}, 100, {A0: 1000.0, B0: 1000.0}) == {A0: 1, B0: 5}
