"""`diff`: compares the rows that two versions of the code produce from the same records. Writes nothing.

Both versions read the same pinned offsets, as batches, and the rows that each sink would get are compared:

- rows that keep the column RECORD by the record that they come from;
- else rows of a sink with a key by that key;
- else whole rows, which are then added or removed, but never changed.

Dead letters are compared like a sink, by their record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.engine import letters
from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.sources import Range, read_batch
from flowstone.pipeline.model import RECORD, PipelineModel, Sink, TableSink, TopicSink
from flowstone.pipeline.operations.ranges import Pinned

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DEAD_LETTERS = "dead letters"
EXAMPLES_DEFAULT = 5


@dataclass(frozen=True)
class Example:
    """A row that differs: what the old and the new code make of it, None where it is not there."""

    id: str | None
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


@dataclass(frozen=True)
class SinkDiff:
    sink: str
    rows_old: int = 0
    rows_new: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: tuple[str, ...] = ()  # what changed in the columns, as sentences
    examples: tuple[Example, ...] = ()

    @property
    def is_equal(self) -> bool:
        return not (self.added or self.removed or self.changed or self.columns)


@dataclass(frozen=True)
class Diff:
    ranges: Mapping[str, Pinned]
    sinks: tuple[SinkDiff, ...]
    only_old: tuple[str, ...] = ()  # sinks
    only_new: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        return all(each.is_equal for each in self.sinks) and not self.only_old and not self.only_new


@dataclass(frozen=True)
class _Side:
    model: PipelineModel
    evaluation: Evaluation
    rows: dict[str, DataFrame] = field(default_factory=dict)


def diff(
    spark: SparkSession,
    old: PipelineModel,
    new: PipelineModel,
    ranges: Mapping[str, Pinned],
    examples_max: int = EXAMPLES_DEFAULT,
) -> Diff:
    """Compare what two versions of a pipeline make of the same records."""
    sides = [_Side(each, evaluate(spark, each, ranges)) for each in (old, new)]
    names = [{sink.name for sink in each.model.sinks} for each in sides]
    found = []
    for sink in new.sinks:
        before = old.sink(sink.name)
        if before is not None:
            rows = sides[0].evaluation.frames[before.input], sides[1].evaluation.frames[sink.input]
            found.append(_compare(sink.name, *rows, _keys(before), _keys(sink), examples_max))
    dead = [_letters(spark, each.evaluation) for each in sides]
    found.append(_compare(DEAD_LETTERS, dead[0], dead[1], (), (), examples_max))
    return Diff(ranges, tuple(found), tuple(sorted(names[0] - names[1])), tuple(sorted(names[1] - names[0])))


def evaluate(spark: SparkSession, model: PipelineModel, ranges: Mapping[str, Pinned]) -> Evaluation:
    """Return the rows of all nodes for the records in these ranges; tables are read as they are now."""
    evaluation = Evaluation(model)
    for source in model.sources:
        part = ranges[source.name].as_range() if source.name in ranges else Range()
        evaluation.add_source(source.name, read_batch(spark, model, source, part))
    evaluation.add_steps(spark, model.steps)
    return evaluation


def _keys(sink: Sink) -> tuple[str, ...]:
    if isinstance(sink.target, TopicSink):
        return (sink.target.key,) if sink.target.key else ()
    return sink.target.keys if isinstance(sink.target, TableSink) else ()


def _letters(spark: SparkSession, evaluation: Evaluation) -> DataFrame:
    """Return the dead letters as rows with RECORD, their cause and their value."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    def header(name: str) -> Column:
        return F.try_element_at(F.filter("headers", lambda each: each["key"] == name), F.lit(-1))["value"].cast(
            "string"
        )

    parts = [
        each.select(
            F.struct(
                header(letters.TOPIC).alias("topic"),
                header(letters.PARTITION).alias("partition"),
                header(letters.OFFSET).alias("offset"),
            ).alias(RECORD),
            header(letters.EXCEPTION_MESSAGE).alias("cause"),
            F.col("value").cast("string").alias("value"),
        )
        for each in evaluation.letters()
    ]
    if parts:
        return reduce(lambda one, other: one.unionByName(other), parts)
    record = "struct<topic: string, partition: string, offset: string>"
    return spark.createDataFrame([], f"{RECORD} {record}, cause string, value string")


def _compare(
    name: str, old: DataFrame, new: DataFrame, old_keys: tuple[str, ...], new_keys: tuple[str, ...], examples_max: int
) -> SinkDiff:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    by_record = RECORD in old.columns and RECORD in new.columns
    keys = new_keys if old_keys == new_keys else ()
    both = _side(old, keys, "old", by_record=by_record).unionByName(_side(new, keys, "new", by_record=by_record))
    rows = both.groupBy("id", "row").agg(F.sum("old").alias("old"), F.sum("new").alias("new"))
    more_old = F.greatest(F.col("old") - F.col("new"), F.lit(0))
    more_new = F.greatest(F.col("new") - F.col("old"), F.lit(0))
    # Without an id each row is compared with itself only.
    group = F.coalesce(F.concat(F.lit("i"), "id"), F.concat(F.lit("r"), "row"))
    per_id = rows.groupBy(group.alias("group")).agg(
        F.first("id").alias("id"),
        F.sum("old").alias("old"),
        F.sum("new").alias("new"),
        F.sum(more_old).alias("removed"),
        F.sum(more_new).alias("added"),
        F.min(F.when(F.col("old") > F.col("new"), F.col("row"))).alias("old_row"),
        F.min(F.when(F.col("new") > F.col("old"), F.col("row"))).alias("new_row"),
    )
    changed = F.least("removed", "added")
    per_id = per_id.withColumn("changed", changed).persist()
    try:
        total = per_id.agg(
            *(F.coalesce(F.sum(each), F.lit(0)).alias(each) for each in ("old", "new", "removed", "added", "changed"))
        ).collect()[0]
        examples = _examples(per_id, examples_max) if total.removed or total.added else ()
    finally:
        per_id.unpersist()
    return SinkDiff(
        name,
        total.old,
        total.new,
        total.added - total.changed,
        total.removed - total.changed,
        total.changed,
        _columns(old, new),
        examples,
    )


def _side(rows: DataFrame, keys: tuple[str, ...], side: str, *, by_record: bool) -> DataFrame:
    """Return each row as JSON with its id."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    options = {"ignoreNullFields": "false"}
    written = [F.col(f"`{each}`") for each in sorted(rows.columns) if each != RECORD]
    if by_record:
        parts = [F.col(RECORD)[each].cast("string") for each in ("topic", "partition", "offset")]
        id = F.when(parts[2].isNotNull(), F.concat_ws("-", *parts))
    elif keys:
        id = F.to_json(F.struct(*(F.col(f"`{each}`") for each in keys)), options)
    else:
        id = F.lit(None).cast("string")
    counts = [F.lit(int(each == side)).alias(each) for each in ("old", "new")]
    whole = F.to_json(F.struct(*written), options) if written else F.lit("{}")
    return rows.select(id.alias("id"), whole.alias("row"), *counts)


def _examples(per_id: DataFrame, count: int) -> tuple[Example, ...]:
    """Return the first rows of each kind of difference."""
    kinds = ("changed > 0", "removed > 0 AND changed = 0", "added > 0 AND changed = 0")
    found = []
    for kind in kinds:
        for row in per_id.where(kind).orderBy("group").limit(count).collect():
            old, new = (None if each is None else json.loads(each) for each in (row.old_row, row.new_row))
            found.append(Example(row.id, old, new))
    return tuple(found)


def _columns(old: DataFrame, new: DataFrame) -> tuple[str, ...]:
    before, after = ({each.name: each.dataType.simpleString() for each in side.schema} for side in (old, new))
    for each in (before, after):
        each.pop(RECORD, None)
    added = [f"column {name} is new ({after[name]})" for name in after if name not in before]
    removed = [f"column {name} is gone" for name in before if name not in after]
    retyped = [
        f"column {name} was {before[name]} and is {after[name]}"
        for name in after
        if name in before and after[name] != before[name]
    ]
    return (*added, *removed, *retyped)
