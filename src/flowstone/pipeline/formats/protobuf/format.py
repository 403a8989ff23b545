"""Protobuf with a declared descriptor set or with a registry: the functions of the package `formats`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.protobuf import columns as protobuf
from flowstone.pipeline.formats.protobuf import descriptors, registered
from flowstone.pipeline.formats.registry import reading, wire_format
from flowstone.pipeline.formats.registry.client import RegisteredSchema, client_for
from flowstone.pipeline.formats.registry.settings import choice_of, refuse_unknown, settings_of
from flowstone.pipeline.formats.registry.wire_format import SchemaKey
from flowstone.pipeline.model import Format

TEST_FILE = "of-registry.desc"


class ProtobufFormat:
    def columns_of(self, format: Format, subject: str) -> StructType:
        return protobuf.columns_of(*_reader(format, subject))

    def decode(self, records: DataFrame, format: Format, subject: str) -> DataFrame:
        reader = _reader(format, subject)
        if not format.registry:
            return protobuf.decode(records, *reader)
        columns, arrow = protobuf.columns_of(*reader), protobuf.arrow_columns(*reader)
        return reading.decode(records, format, columns, arrow, partial(_decode, *reader))

    def encode(self, columns: StructType, format: Format, subject: str) -> Column:
        if not format.registry:
            return protobuf.encode(columns, *_reader(format, subject))
        client, choice = client_for(settings_of(format)), choice_of(format, subject)
        if choice.register and not format.schema.strip():
            raise PipelineError(
                "a sink with values of the format protobuf needs a schema, the path of a descriptor set, or the option "
                "auto.register.schemas=false, with which it takes the registry's"
            )
        descriptor_set, name = _reader(format, subject)
        protobuf.encode(
            columns, descriptor_set, name
        )  # raises if the columns do not fit, before anything is registered
        if choice.register:
            id = client.id_of(choice, registered.to_register(descriptor_set, name))
            indexes = descriptors.indexes_of(descriptors.message(descriptor_set, name))
        else:
            id, schema = client.chosen(choice)
            indexes = registered.indexes_in(schema, name)
        return protobuf.encode(columns, descriptor_set, name, wire_format.frame(id, indexes))

    def for_tests(self, format: Format, subject: str, directory: str) -> Format:
        descriptor_set, name = _reader(format, subject)
        path = Path(directory, TEST_FILE)
        path.write_bytes(descriptor_set)
        return replace(format, schema=str(path), message=name, registry="", options={})


def _reader(format: Format, subject: str) -> tuple[bytes, str]:
    """Return the descriptor set and the message with which a source's values are read."""
    refuse_unknown(format)
    if not format.schema.strip():
        return registered.descriptor_set(reading.registered(format, subject)[1], format.message)
    descriptor_set = descriptors.from_file(format.schema)
    return descriptor_set, descriptors.message(descriptor_set, format.message).full_name


def _decode(descriptor_set: bytes, name: str, values: pa.Array, key: SchemaKey, schema: RegisteredSchema) -> Decoded:
    refusal = registered.refusal(schema, key, name)
    if refusal is None:
        return protobuf.decode_values(values, descriptor_set, name)
    nothing = pa.nulls(len(values), protobuf.arrow_columns(descriptor_set, name))
    return Decoded(nothing, dict.fromkeys(range(len(values)), refusal))
