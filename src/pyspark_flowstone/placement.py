"""`exactly_once(df, ...)`: all rows of one output partition in one task, as the exactly-once sink needs them.

The sink's tasks share one producer id, whose sequence numbers allow a partition one writer. The rows are therefore
given the partitions that Kafka's partitioner would choose and are exchanged between the tasks by them. The column
`partition` gets a mark in its metadata, by which the sink knows that this was done, and with settings of Spark under
which no task runs twice.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import IntegerType, StructType

from flowstone.arrow.encode import slots_of
from flowstone.client import BadAddress, BadAnswer, Cluster, GaveUp
from pyspark_flowstone.connections import CLIENT_ID
from pyspark_flowstone.kafka_options import CONNECT_TIMEOUT_DEFAULT_S
from pyspark_flowstone.positions import unreachable
from pyspark_flowstone.sink_options import columns_written
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import repartition_by_id, with_arrow_column

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

MARK = "flowstone.exactly_once"
PARTITION, SLOT = "partition", "__flowstone_slot"
# Spark's settings that must have these values, its defaults for them, and what happens otherwise.
SETTINGS = (
    ("spark.speculation", "false", "false", "a slow task is run a second time beside the first"),
    ("spark.stage.maxConsecutiveAttempts", "1", "4", "a stage is run again while its old tasks still run"),
    (
        "spark.stage.ignoreDecommissionFetchFailure",
        "false",
        "false",
        "a stage is run again while its old tasks still run",
    ),
)


def exactly_once(
    df: DataFrame,
    *,
    bootstrap: str,
    topic: str | Sequence[str],
    connect_timeout_s: float = CONNECT_TIMEOUT_DEFAULT_S,
) -> DataFrame:
    """Return the rows with the partition of each, all rows of a partition in one task: for `delivery=exactly-once`.

    `topic` is the sink's topic; or several, and then each row names its own in the column `topic`. Rows that have a
    partition keep it. To be called last, just before `write` or `writeStream`.

    Raises OptionError if a column is missing, a topic does not exist, or Spark's settings could run a task twice.
    """
    topics = [topic] if isinstance(topic, str) else sorted(set(topic))
    check_settings(df.sparkSession)
    columns_written(df.schema, topic if isinstance(topic, str) else None)
    counts = _partition_counts(bootstrap, topics, connect_timeout_s)
    return _exchanged(df, F.col("topic") if not isinstance(topic, str) else F.lit(topic), counts)


def _exchanged(df: DataFrame, named: Column, counts: Mapping[str, int]) -> DataFrame:
    """Return the rows with the partition of each, exchanged by it. `named` is the topic of a row."""
    names = set(df.columns)
    inputs = [
        F.col(name).cast(kind) if name in names else F.lit(None).cast(kind)
        for name, kind in (("key", "binary"), (PARTITION, "int"))
    ]
    slotted = with_arrow_column(df, SLOT, slot_function(counts), [named, *inputs], IntegerType())
    first = first_slots(counts)
    base = F.element_at(F.create_map(*[F.lit(each) for pair in first.items() for each in pair]), named)
    placed = repartition_by_id(slotted, sum(counts.values()), SLOT)
    return _with_partition(placed, F.col(SLOT) - base).drop(SLOT)


@dataclass(frozen=True)
class Part:
    """Rows for one topic, with all columns of a write but `partition`."""

    topic: str
    rows: DataFrame
    has_keys: bool = True


def placed(parts: Sequence[Part], *, bootstrap: str, connect_timeout_s: float = CONNECT_TIMEOUT_DEFAULT_S) -> DataFrame:
    """Return the rows of all parts, in the columns of the first, placed as `exactly_once` does.

    Rows without keys may be in any partition. If there are not too many tasks, each writes its rows to a partition of
    its own, and they are not exchanged: a failure in the computation of such rows then fails the write.
    """
    check_settings(parts[0].rows.sparkSession)
    counts = _partition_counts(bootstrap, sorted({each.topic for each in parts}), connect_timeout_s)
    tasks = parts[0].rows.sparkSession.sparkContext.defaultParallelism
    topics = Counter(each.topic for each in parts)
    found, exchanged = [], []
    for each in parts:
        if each.has_keys or topics[each.topic] > 1 or counts[each.topic] < tasks:
            exchanged.append(each)
        else:
            found.append(_with_partition(each.rows.coalesce(counts[each.topic]), F.lit(None)))
    if exchanged:
        rows = reduce(DataFrame.unionByName, (each.rows for each in exchanged))
        found.append(_exchanged(rows, F.col("topic"), {each.topic: counts[each.topic] for each in exchanged}))
    return _with_partition(reduce(DataFrame.unionByName, found), F.col(PARTITION))


def _with_partition(rows: DataFrame, partition: Column) -> DataFrame:
    """Return the rows with the marked column `partition`; NULL is the partition of the task that writes the row."""
    return rows.withColumn(PARTITION, partition.cast("int").alias(PARTITION, metadata={MARK: True}))


def check_settings(spark: SparkSession) -> None:
    """Raise OptionError if Spark could run a task twice with the session's settings."""
    for name, needed, default, otherwise in SETTINGS:
        value = spark.conf.get(name, default)
        if value != needed:
            raise OptionError(
                f"{name}: it is {value}, and exactly-once needs {needed}, since otherwise {otherwise}; set it when the "
                f'session is created, with .config("{name}", "{needed}")'
            )


def check_placed(schema: StructType) -> None:
    """Raise OptionError if the rows did not come from `exactly_once`."""
    if not any(each.name == PARTITION and MARK in (each.metadata or {}) for each in schema.fields):
        raise OptionError(
            "delivery: exactly-once needs all rows of a partition in one task; write "
            "pyspark_flowstone.exactly_once(rows, bootstrap=..., topic=...) instead of the rows"
        )


def slot_function(counts: Mapping[str, int]) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """Return the function that Spark calls, in a Python worker, with columns of rows: the slot of each row.

    A slot is a partition's place among the partitions of all topics.
    """
    names, largest = list(counts), max(counts.values())

    def slots(topic: pa.Array, key: pa.Array, partition: pa.Array) -> pa.Array:
        numbers = pc.index_in(topic, value_set=pa.array(names, topic.type))
        if numbers.null_count:
            unknown = topic[pc.index(numbers.is_null(), True).as_py()].as_py()
            raise OptionError(f"topic: a row is for {unknown!r}, which is not among the topics given to exactly_once")
        # Small micro-batches without keys are not to fill the first partition only.
        return slots_of(numbers, key, partition, counts, random.randrange(largest))

    return slots


def first_slots(counts: Mapping[str, int]) -> dict[str, int]:
    first, slots = {}, 0
    for name, count in counts.items():
        first[name] = slots
        slots += count
    return first


def _partition_counts(bootstrap: str, topics: Sequence[str], deadline_s: float) -> dict[str, int]:
    try:
        with Cluster(bootstrap, client_id=CLIENT_ID, deadline_s=deadline_s) as cluster:
            counts = cluster.ensure_topics(topics)
    except (GaveUp, BadAnswer, BadAddress) as error:
        raise unreachable(error) from error
    for each in topics:
        if each not in counts:
            raise OptionError(f"topic: there is no topic {each}; create it with `flowstone topic create {each}`")
    return {each: counts[each] for each in topics}
