"""Which steps only unite the rows of several streams, row by row, and so can be applied to each stream alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.engine.steps import apply_step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from flowstone.pipeline.model import Step

# Operators of Spark's analysed plans whose result for some rows does not depend on the other rows of a stream.
ROW_BY_ROW = frozenset(
    {
        "CTERelationDef",
        "CTERelationRef",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "Join",  # with a table
        "MapInArrow",  # Spark divides its rows as it likes
        "MapInPandas",
        "Project",
        "ResolvedHint",
        "SubqueryAlias",
        "Union",
        "View",
        "WithCTE",
    }
)


def is_union(spark: SparkSession, step: Step, frames: Mapping[str, DataFrame]) -> bool:
    """Return whether the rows of a step are those that it returns for each of its streams alone, taken together."""
    inputs = dict(frames)
    for name in step.inputs:
        if frames[name].isStreaming:
            inputs[name] = _stream(spark, frames[name].schema)
    return all(_is_row_by_row(each) for each in operators(apply_step(spark, step, inputs)) if each.isStreaming())


def _is_row_by_row(operator: Any) -> bool:
    below = children(operator)
    if not below:
        return True
    if operator.nodeName() == "Join" and not _is_join_with_table(operator):
        return False
    return operator.nodeName() in ROW_BY_ROW


def _is_join_with_table(join: Any) -> bool:
    """Return whether each row of the stream is joined by itself, and no row of a table comes without one of those."""
    left, right = join.left().isStreaming(), join.right().isStreaming()
    kind = str(join.joinType().sql())
    return left != right and (kind in ("INNER", "CROSS") or kind.startswith("LEFT" if left else "RIGHT"))


def _stream(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a stream with these columns, of which only the plan is used."""
    return spark.readStream.format("rate").load().select(*_nulls(schema))


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame with these columns, and no rows: Spark's optimizer drops what is combined with it."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return spark.range(1).where(F.lit(False)).select(*_nulls(schema))


def _nulls(schema: StructType) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return [F.lit(None).cast(each.dataType).alias(each.name) for each in schema]


def operators(rows: DataFrame) -> Iterator[Any]:
    """Yield the operators of the rows' analysed plan."""
    yield from _operators(rows._jdf.queryExecution().analyzed())


def _operators(plan: Any) -> Iterator[Any]:
    yield plan
    for child in children(plan):
        yield from _operators(child)


def children(plan: Any) -> list[Any]:
    found = plan.children()
    return [found.apply(number) for number in range(found.size())]
