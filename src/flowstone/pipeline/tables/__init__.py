"""Lake tables without a jar: Delta, Iceberg and Parquet, written exactly once from Spark.

Only the interface is here yet: each function refuses with a PipelineError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Written:
    rows: int
    files: int
    is_repeated: bool  # the micro-batch had been written before


@dataclass(frozen=True)
class MicroBatch:
    """The identity of a write that is done once. `ends` has the offset of each "topic-partition" at its end."""

    app_id: str
    number: int
    ends: Mapping[str, int]


def write(rows: DataFrame, target: TableSink, batch: MicroBatch | None) -> Written:
    raise _refusal(target.kind)


def read(spark: SparkSession, kind: str, path: str, options: Mapping[str, str]) -> DataFrame:
    raise _refusal(kind)


def check(target: TableSink, schema: StructType) -> None:
    raise _refusal(target.kind)


def _refusal(kind: str) -> PipelineError:
    return PipelineError(f"tables of the kind {kind} are not supported yet; use topics")
