"""Sources as DataFrames: topics with the record's fields in RECORD, decoded; files and tables as they are.

Streams are read for queries, and batches of the same rows for tests, diffs and backfills.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowstone.pipeline import formats, tables
from flowstone.pipeline.connecting import spark_options
from flowstone.pipeline.model import ERROR, RECORD, FileSource, PipelineModel, Source, TableSource, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORD_TYPE = (
    "struct<topic: string, partition: int, offset: bigint, timestamp: timestamp, key: binary, value: binary, "
    "headers: array<struct<key: string, value: binary>>>"
)
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class Range:
    """The start and end of a read from a topic source, as options of the Spark source (JSON of offsets)."""

    starting: str = "earliest"
    ending: str = "latest"  # for batches
    group: str = ""  # the consumer group that shows the progress of a stream
    options: Mapping[str, str] = field(default_factory=dict)


def is_stream(source: Source) -> bool:
    return not isinstance(source.origin, TableSource)


def read_stream(
    spark: SparkSession, model: PipelineModel, source: Source, part: Range, *, keeps_records: bool = True
) -> DataFrame:
    """Return a stream of the source's rows; a topic's have RECORD and ERROR.

    Without `keeps_records` good rows may have no RECORD.
    """
    origin = source.origin
    assert not isinstance(origin, TableSource)
    if isinstance(origin, FileSource):
        return spark.readStream.format(origin.kind).schema(origin.schema).options(**origin.options).load(origin.path)
    options = _topic_options(model, origin) | {"startingOffsets": part.starting} | dict(part.options)
    if part.group:
        options["groupId"] = part.group
    if origin.records_per_batch_max is not None:
        options["maxOffsetsPerTrigger"] = str(origin.records_per_batch_max)
    decoded = formats.read_stream(spark, options, origin.value, keeps_records=keeps_records)
    if decoded is not None:
        return decoded
    return _decoded(spark, spark.readStream.format("flowstone").options(**options).load(), origin)


def stand_in(spark: SparkSession, source: Source) -> DataFrame:
    """Return a stream with the columns of a source and no rows, for analysis: Spark starts no process for it."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    from flowstone.pipeline.formats.bad_values import no_error

    origin = source.origin
    assert not isinstance(origin, TableSource)
    nothing = spark.readStream.format("rate").load()
    if isinstance(origin, FileSource):
        kind = origin.schema or "value string"
        return nothing.selectExpr(f"CAST(NULL AS struct<{_fields(spark, kind)}>) row").select("row.*")
    columns = formats.columns_of(origin.value, formats.subject_of(*origin.topics))
    nulls = [F.lit(None).cast(each.dataType).alias(each.name) for each in columns]
    return nothing.select(*nulls, F.lit(None).cast(RECORD_TYPE).alias(RECORD), no_error().alias(ERROR))


def _fields(spark: SparkSession, ddl: str) -> str:
    from pyspark.sql.types import StructType

    kind = StructType.fromDDL(ddl)
    assert isinstance(kind, StructType)
    return kind.simpleString().removeprefix("struct<").removesuffix(">")


def read_batch(spark: SparkSession, model: PipelineModel, source: Source, part: Range) -> DataFrame:
    """Return the rows that the source has in a range, or now; a topic's have RECORD and ERROR."""
    origin = source.origin
    if isinstance(origin, TableSource):
        return tables.read(spark, origin.kind, origin.path, origin.options)
    if isinstance(origin, FileSource):
        return spark.read.format(origin.kind).schema(origin.schema).options(**origin.options).load(origin.path)
    options = _topic_options(model, origin) | {"startingOffsets": part.starting, "endingOffsets": part.ending}
    return _decoded(spark, spark.read.format("flowstone").options(**options, **part.options).load(), origin)


def _topic_options(model: PipelineModel, origin: TopicSource) -> dict[str, str]:
    subscription = {"subscribePattern": origin.pattern} if origin.pattern else {"subscribe": ",".join(origin.topics)}
    fixed = {**spark_options(model), "includeHeaders": "true", **subscription}
    return {"isolation.level": "read_committed", **origin.options, **fixed}


def _decoded(spark: SparkSession, records: DataFrame, origin: TopicSource) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    whole = records.select(F.struct(*RECORD_COLUMNS).alias(RECORD))
    return formats.decode(whole, origin.value, spark, formats.subject_of(*origin.topics))


def split_errors(decoded: DataFrame) -> tuple[DataFrame, DataFrame | None]:
    """Return the rows that could be decoded, without ERROR, and the others; None if nothing can fail."""
    if ERROR not in decoded.columns:
        return decoded, None
    failed = decoded[ERROR].isNotNull()
    return decoded.where(~failed).drop(ERROR), decoded.where(failed).select(RECORD, ERROR)
