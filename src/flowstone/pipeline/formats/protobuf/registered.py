"""Protobuf schemas of a registry: as descriptor sets, and the message that a record's frame names."""

from __future__ import annotations

import base64
from functools import lru_cache

from google.protobuf import descriptor_pb2

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.protobuf import descriptors, proto_text
from flowstone.pipeline.formats.registry.client import RegisteredSchema
from flowstone.pipeline.formats.registry.wire_format import SchemaKey

_SCHEMAS_MAX = 1_000
_GOOGLE = "google/protobuf/"


def descriptor_set(schema: RegisteredSchema, name: str) -> tuple[bytes, str]:
    """Return the descriptor set of a registered schema, and the message: `name`, or the only one of its file."""
    file = descriptors.from_base64(schema.text)
    files = _files(schema)
    if file is None or files is None:
        raise PipelineError(
            "the registry has the schema as text only: give the pipeline its descriptor set as `schema`, made with "
            "protoc --include_imports --descriptor_set_out=orders.desc orders.proto"
        )
    own = [f"{file.package}.{each.name}".lstrip(".") for each in file.message_type]
    if not name and len(own) > 1:
        raise PipelineError(f"the schema has several messages; say which one with `message`: {', '.join(own[:20])}")
    return descriptors.joined(files), name or own[0]


def _files(schema: RegisteredSchema) -> list[descriptor_pb2.FileDescriptorProto] | None:
    """Return the files of a schema and of those that it refers to, each named as it is imported."""
    found = []
    for each in schema.references:
        inner = _files(each.schema)
        if inner is None:
            return None
        inner[-1].name = each.name
        found += inner
    file = descriptors.from_base64(schema.text)
    return None if file is None else [*found, file]


@lru_cache(_SCHEMAS_MAX)
def refusal(schema: RegisteredSchema, key: SchemaKey, wanted: str) -> tuple[BadValue, str] | None:
    """Return why records of a schema are not the wanted message, or None if they are."""
    file = descriptors.from_base64(schema.text)
    if file is not None:
        found = descriptors.name_at(file, key.indexes)
    else:
        found = proto_text.message_at(schema.text, key.indexes)
    if found is None:
        return BadValue.BAD_FRAME, f"the frame names a message that the file of {key} does not have"
    if found != wanted:
        return BadValue.INCOMPATIBLE_SCHEMA, f"the record is the message {found}, and should be {wanted}"
    return None


def indexes_in(schema: RegisteredSchema, name: str) -> bytes:
    """Return the indexes by which frames name a message of a registered schema. Raises PipelineError."""
    file = descriptors.from_base64(schema.text)
    if file is None:
        raise PipelineError(
            "the registry has the schema as text only, which a sink cannot write with; leave out the option "
            "auto.register.schemas=false"
        )
    return descriptors.indexes_of(descriptors.message(*descriptor_set(schema, name)))


def to_register(set_bytes: bytes, name: str) -> RegisteredSchema:
    """Return what a sink registers for a message. Raises PipelineError if its file imports others."""
    file_name = descriptors.message(set_bytes, name).file.name
    files = descriptor_pb2.FileDescriptorSet.FromString(set_bytes).file
    file = next(each for each in files if each.name == file_name)
    others = [each for each in file.dependency if not each.startswith(_GOOGLE)]
    if others:
        raise PipelineError(
            f"the schema imports {others[0]}, which a sink cannot register; register the schema and what it imports "
            f"with your build, and set the option auto.register.schemas to false"
        )
    return RegisteredSchema(base64.b64encode(file.SerializeToString(deterministic=True)).decode(), "PROTOBUF")
