"""The partitions that rows get before an exactly-once sink, and the marks and settings that it asks for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from flowstone.arrow.encode import Encoder, RowRefused
from pyspark_flowstone.placement import MARK, check_placed, first_slots, slot_function
from pyspark_flowstone.values import OptionError

ROWS = 1000


def column(values, kind):
    return pa.array(values, kind)


def test_rows_with_keys_get_the_partitions_that_the_sink_would_choose():
    keys = [b"key %d" % (number % 50) for number in range(ROWS)]
    slots = slot_function({"orders": 7})(
        column(["orders"] * ROWS, pa.string()), column(keys, pa.binary()), pa.nulls(ROWS, pa.int32())
    )
    rows = pa.RecordBatch.from_pydict({"key": column(keys, pa.binary()), "value": column(keys, pa.binary())})
    counts = {each.partition.partition: 0 for each in Encoder(now_ms=0).encode(rows, {"orders": 7}, "orders")}
    for each in Encoder(now_ms=0).encode(rows, {"orders": 7}, "orders"):
        counts[each.partition.partition] += each.record_count
    found = slots.to_pylist()
    assert {slot: found.count(slot) for slot in set(found)} == counts


def test_slots_of_several_topics_follow_each_other():
    counts = {"a": 2, "b": 3}
    assert first_slots(counts) == {"a": 0, "b": 2}
    slots = slot_function(counts)(
        column(["b", "a", "b"], pa.string()), pa.nulls(3, pa.binary()), column([2, 1, 0], pa.int32())
    )
    assert slots.to_pylist() == [4, 1, 2]


def test_rows_without_keys_are_spread_over_all_partitions():
    slots = slot_function({"orders": 4})(
        column(["orders"] * 4000, pa.string()), pa.nulls(4000, pa.binary()), pa.nulls(4000, pa.int32())
    )
    found = slots.to_pylist()
    assert [found.count(slot) for slot in range(4)] == [1000] * 4


def test_a_small_batch_without_keys_does_not_always_begin_at_the_same_partition():
    place = slot_function({"orders": 4})
    one = column(["orders"], pa.string()), pa.nulls(1, pa.binary()), pa.nulls(1, pa.int32())
    assert {place(*one).to_pylist()[0] for _ in range(200)} == {0, 1, 2, 3}


def test_no_rows_have_no_slots():
    assert slot_function({"a": 1})(pa.nulls(0, pa.string()), pa.nulls(0, pa.binary()), pa.nulls(0, pa.int32())) == (
        pa.array([], pa.int32())
    )


def test_a_partition_that_its_topic_does_not_have_is_refused():
    with pytest.raises(RowRefused, match="topic a has 2 partitions, 0 to 1, and no partition 2"):
        slot_function({"a": 2})(column(["a", "a"], pa.string()), pa.nulls(2, pa.binary()), column([0, 2], pa.int32()))


@pytest.mark.parametrize("name", ["elsewhere", None])
def test_a_topic_that_was_not_named_is_refused(name):
    with pytest.raises(
        OptionError, match=f"topic: a row is for {name!r}, which is not among the topics given to exactly_once"
    ):
        slot_function({"a": 2})(column([name], pa.string()), pa.nulls(1, pa.binary()), pa.nulls(1, pa.int32()))


def test_rows_are_accepted_with_the_mark_only():
    value = StructField("value", StringType())
    check_placed(StructType([value, StructField("partition", IntegerType(), True, {MARK: True})]))
    for fields in ([value], [value, StructField("partition", IntegerType())]):
        with pytest.raises(OptionError, match=r"delivery: exactly-once needs .* pyspark_flowstone\.exactly_once"):
            check_placed(StructType(fields))
