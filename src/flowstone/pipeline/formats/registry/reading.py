"""Reading with a registry, in Spark's driver: the schema of a source, and the decoding of its records."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats import arrow_values
from flowstone.pipeline.formats.registry import framed
from flowstone.pipeline.formats.registry.client import RegisteredSchema, client_for
from flowstone.pipeline.formats.registry.framed import SchemaDecoder
from flowstone.pipeline.formats.registry.settings import choice_of, settings_of
from flowstone.pipeline.model import Format, FormatKind


def registered(format: Format, subject: str) -> tuple[int, RegisteredSchema]:
    """Return the registry's schema for a format that declares none, and its id. Raises PipelineError."""
    if not format.registry:
        what = "its JSON, a file with it" if format.kind is FormatKind.AVRO else "the path of a descriptor set"
        raise PipelineError(f"the format {format.kind} needs the schema of its values: {what}, or a registry")
    id, found = client_for(settings_of(format)).chosen(choice_of(format, subject))
    if found.type != kind_of(format):
        raise PipelineError(f"the registry's schema is of the type {found.type}, and the format is {format.kind}")
    return id, found


def decode(
    records: DataFrame, format: Format, columns: StructType, arrow: pa.DataType, decoder: SchemaDecoder
) -> DataFrame:
    """Return the columns, RECORD and ERROR of records with the Confluent wire format."""
    whole = partial(framed.decode, settings_of(format), kind_of(format), arrow, decoder)
    return arrow_values.decode(records, columns, whole, headers=True)


def kind_of(format: Format) -> str:
    """Return the registry's name of a format."""
    return format.kind.upper()
