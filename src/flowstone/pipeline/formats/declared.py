"""The columns that a format declares in Spark's DDL: `id string NOT NULL, total double`."""

from __future__ import annotations

from collections import Counter

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import ERROR, RECORD, Format


def columns(format: Format) -> StructType:
    """Return the columns of the format's DDL. Raises PipelineError if it has none or is malformed.

    A session of Spark must be active: Spark parses the DDL.
    """
    if not format.schema.strip():
        raise PipelineError(
            f"the format {format.kind} needs the columns of its values: give its schema as Spark's DDL, as in "
            f'"id string, total double"'
        )
    try:
        parsed = StructType.fromDDL(format.schema)
    except PySparkException as error:
        cause = str(error).strip().splitlines()[0]
        raise PipelineError(
            f'the schema "{format.schema}" is not Spark\'s DDL ("id string, total double"): {cause}'
        ) from error
    assert isinstance(parsed, StructType)
    return refuse_reserved(parsed)


def refuse_reserved(found: StructType) -> StructType:
    """Return the columns. Raises PipelineError if a name is reserved, or occurs twice for Spark, which ignores case."""
    counts = Counter(name.lower() for name in found.names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise PipelineError(
            f"the schema has more than one column {', '.join(twice)} (Spark ignores upper and lower case)"
        )
    reserved = sorted({RECORD, ERROR} & set(counts))
    if reserved:
        raise PipelineError(f"the schema has a column {', '.join(reserved)}, a name that pipelines reserve; rename it")
    return found
