"""Shared code of the formats with schemas, Avro and Protobuf: their interface, and the packages that they need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import Format, FormatKind

_PACKAGES = {FormatKind.AVRO: ("numpy",), FormatKind.PROTOBUF: ("numpy", "ptars", "google.protobuf")}


class SchemaFormat(Protocol):
    """The functions of the package `formats`, for one kind of format."""

    def columns_of(self, format: Format, subject: str) -> StructType: ...

    def decode(self, records: DataFrame, format: Format, subject: str) -> DataFrame: ...

    def encode(self, columns: StructType, format: Format, subject: str) -> Column: ...

    def for_tests(self, format: Format, subject: str, directory: str) -> Format: ...


def of(format: Format) -> SchemaFormat:
    """Return the format's functions. Raises PipelineError if a package that they need is missing."""
    for each in _PACKAGES[format.kind]:
        if not _is_there(each):
            raise PipelineError(
                f"values of the format {format.kind} need the package {each}; install it with: "
                f"pip install 'flowstone[{format.kind}]'"
            )
    if format.kind is FormatKind.AVRO:
        from flowstone.pipeline.formats.avro.format import AvroFormat

        return AvroFormat()
    from flowstone.pipeline.formats.protobuf.format import ProtobufFormat

    return ProtobufFormat()


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def check(format: Format, subject: str, *, is_sink: bool) -> None:
    """Raise PipelineError if the schema or the registry cannot be used. Nothing is registered."""
    functions = of(format)
    takes_any_columns = is_sink and not format.schema.strip() and (format.registry or format.kind is FormatKind.AVRO)
    if not takes_any_columns:
        functions.columns_of(format, subject)
    if format.registry:
        from flowstone.pipeline.formats.registry.client import client_for
        from flowstone.pipeline.formats.registry.settings import choice_of, settings_of

        choice_of(format, subject or "any")
        client_for(settings_of(format)).ping()
