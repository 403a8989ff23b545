"""Avro with a declared schema or with a registry: the functions of the package `formats`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.avro import columns as avro
from flowstone.pipeline.formats.avro import decoding
from flowstone.pipeline.formats.avro.decoding import Text
from flowstone.pipeline.formats.registry import reading, wire_format
from flowstone.pipeline.formats.registry.client import RegisteredSchema, client_for
from flowstone.pipeline.formats.registry.settings import choice_of, refuse_unknown, settings_of
from flowstone.pipeline.formats.registry.wire_format import SchemaKey
from flowstone.pipeline.model import Format


class AvroFormat:
    def columns_of(self, format: Format, subject: str) -> StructType:
        return avro.columns_of(*_reader(format, subject))

    def decode(self, records: DataFrame, format: Format, subject: str) -> DataFrame:
        reader = _reader(format, subject)
        if not format.registry:
            return avro.decode(records, reader[0])
        decoder = partial(_decode, reader)
        return reading.decode(records, format, avro.columns_of(*reader), decoding.columns_of(reader), decoder)

    def encode(self, columns: StructType, format: Format, subject: str) -> Column:
        refuse_unknown(format)
        if not format.registry:
            return avro.encode(columns, _written(columns, format, subject))
        client, choice = client_for(settings_of(format)), choice_of(format, subject)
        if not choice.register:
            if format.schema.strip():
                raise PipelineError(
                    "with auto.register.schemas=false a sink takes the registry's schema: leave out one of them"
                )
            id, schema = reading.registered(format, subject)
            return avro.encode(columns, *_text(schema), wire_format.frame(id))
        text = _written(columns, format, subject)
        avro.encode(columns, text)  # raises if the columns do not fit, before anything is registered
        return avro.encode(columns, text, (), wire_format.frame(client.id_of(choice, RegisteredSchema(text, "AVRO"))))

    def for_tests(self, format: Format, subject: str, directory: str) -> Format:
        text = avro.schema_for(self.columns_of(format, subject), subject)
        return replace(format, schema=text, registry="", options={})


def _reader(format: Format, subject: str) -> Text:
    """Return the schema with which a source's values are read."""
    refuse_unknown(format)
    if format.schema.strip():
        return avro.schema_text(format.schema), ()
    return _text(reading.registered(format, subject)[1])


def _written(columns: StructType, format: Format, subject: str) -> str:
    """Return the schema of a sink that does not take the registry's."""
    return avro.schema_text(format.schema) if format.schema.strip() else avro.schema_for(columns, subject)


def _text(schema: RegisteredSchema) -> Text:
    """Return a registered schema and all that it refers to, each after those that it needs."""
    inner = [_text(each.schema) for each in schema.references]
    needed = dict.fromkeys(text for own, others in inner for text in (*others, own))
    return schema.text, tuple(needed)


def _decode(reader: Text, values: pa.Array, key: SchemaKey, schema: RegisteredSchema) -> Decoded:
    return decoding.decode(values, _text(schema), reader)
