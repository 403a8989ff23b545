"""Dead letters: rows that could not be decoded or were diverted, as records with their origin and cause in headers.

A letter has the original record's key, value, headers and timestamp, as far as the row still has RECORD; otherwise its
value is the row as JSON. The headers have the names of Kafka Connect, so that its tools understand them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.pipeline.engine.steps import UNMET
from flowstone.pipeline.model import ERROR, RECORD, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "__connect.errors."
TOPIC, PARTITION, OFFSET = f"{PREFIX}topic", f"{PREFIX}partition", f"{PREFIX}offset"
CONNECTOR = f"{PREFIX}connector.name"  # the pipeline
STAGE = f"{PREFIX}stage"  # VALUE_CONVERTER for rows that could not be decoded, TRANSFORMATION for diverted ones
CLASS = f"{PREFIX}class.name"  # the source or step
EXCEPTION_CLASS = f"{PREFIX}exception.class.name"
EXCEPTION_MESSAGE = f"{PREFIX}exception.message"
TRANSFORMATION = "TRANSFORMATION"

EMPTY_HEADERS = "CAST(array() AS array<struct<key: string, value: binary>>)"
# The columns of every output of records, in this order.
COLUMNS = ("topic", "key", "value", "headers", "timestamp")


def undecoded(failed: DataFrame, pipeline: str, source: str, topic: str) -> DataFrame:
    """Return the letters for records that could not be decoded, which have RECORD and ERROR."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    cause = {
        CONNECTOR: F.lit(pipeline),
        STAGE: F.col(f"{ERROR}.stage"),
        CLASS: F.lit(source),
        EXCEPTION_CLASS: F.col(f"{ERROR}.class"),
        EXCEPTION_MESSAGE: F.col(f"{ERROR}.message"),
    }
    return _letters(failed, cause, topic)


def diverted(rows: DataFrame, pipeline: str, step: Step, topic: str) -> DataFrame:
    """Return the letters for rows that an expectation of a step diverts, which have UNMET."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    conditions = F.create_map(*[F.lit(each) for item in _conditions(step).items() for each in item])
    first = F.element_at(UNMET, 1)
    cause = {
        CONNECTOR: F.lit(pipeline),
        STAGE: F.lit(TRANSFORMATION),
        CLASS: F.lit(step.name),
        EXCEPTION_CLASS: F.concat(F.lit("expectation "), first),
        EXCEPTION_MESSAGE: F.concat(
            F.lit("the row does not meet "), F.concat_ws(", ", UNMET), F.lit(": "), F.element_at(conditions, first)
        ),
    }
    return _letters(rows, cause, topic)


def _conditions(step: Step) -> dict[str, str]:
    return {each.name: each.condition for each in step.expectations}


def _letters(rows: DataFrame, cause: dict[str, Column], topic: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if RECORD in rows.columns:
        origin = {
            TOPIC: F.col(f"{RECORD}.topic"),
            PARTITION: F.col(f"{RECORD}.partition").cast("string"),
            OFFSET: F.col(f"{RECORD}.offset").cast("string"),
        }
        original = F.coalesce(F.col(f"{RECORD}.headers"), F.expr(EMPTY_HEADERS))
        return rows.select(
            F.lit(topic).alias("topic"),
            F.col(f"{RECORD}.key").alias("key"),
            F.col(f"{RECORD}.value").alias("value"),
            # A letter that is retried and fails again has the newer cause only.
            F.concat(F.filter(original, _is_not_cause), _headers(origin | cause)).alias("headers"),
            F.col(f"{RECORD}.timestamp").alias("timestamp"),
        )
    shown = [each for each in rows.columns if each != UNMET]
    return rows.select(
        F.lit(topic).alias("topic"),
        F.lit(None).cast("binary").alias("key"),
        F.to_json(F.struct(*[F.col(f"`{each}`") for each in shown])).cast("binary").alias("value"),
        _headers(cause).alias("headers"),
        F.lit(None).cast("timestamp").alias("timestamp"),
    )


def _is_not_cause(header: Column) -> Column:
    return ~header.getField("key").startswith(PREFIX)


def _headers(values: dict[str, Column]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.array(
        *[F.struct(F.lit(name).alias("key"), each.cast("binary").alias("value")) for name, each in values.items()]
    )
