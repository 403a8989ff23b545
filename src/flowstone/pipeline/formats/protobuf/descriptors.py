"""Descriptors of Protobuf messages: from a file that protoc wrote, or from a registry, to what decodes them.

A descriptor set is serialized bytes everywhere in this package, so that Spark can send it to its workers.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from flowstone.pipeline.errors import PipelineError

FILE_BYTES_MAX = 64 * 2**20
_FILES_MAX = 100
# The modules of google.protobuf that declare the types which a registry's schema may import without a reference.
_WELL_KNOWN = (
    "any",
    "api",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)


def from_file(path: str) -> bytes:
    """Return the descriptor set of a file. Raises PipelineError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise PipelineError(
            f"the descriptor set {path} cannot be read: {error}; make it with "
            f"protoc --include_imports --descriptor_set_out={path} your.proto"
        ) from error
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
    except DecodeError:
        found = descriptor_pb2.FileDescriptorSet()
    if not found.file or any(not each.name for each in found.file):
        raise PipelineError(
            f"{path} is not a descriptor set; make one with "
            f"protoc --include_imports --descriptor_set_out={path} your.proto"
        )
    return data


def from_base64(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the file that a registry's text is the serialized form of, or None if it is something else."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.message_type else None


def joined(files: list[descriptor_pb2.FileDescriptorProto]) -> bytes:
    found: bytes = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString(deterministic=True)
    return found


@lru_cache(_FILES_MAX)
def message(descriptor_set: bytes, name: str) -> Any:
    """Return the descriptor of a message by its full name; without a name, of the only one. Raises PipelineError."""
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    pool = descriptor_pool.DescriptorPool()
    waiting = {each.name: each for each in [*_well_known(), *files]}
    try:
        for each in list(waiting):
            _add(pool, waiting, each, 0)
    except (TypeError, KeyError, RecursionError) as error:
        raise PipelineError(f"the descriptor set is not whole ({error}); make it with --include_imports") from error
    own = [f"{each.package}.{top.name}".lstrip(".") for each in files for top in each.message_type]
    if not name and len(own) != 1:
        raise PipelineError(f"the schema has several messages; say which one with `message`: {', '.join(own[:20])}")
    try:
        found = pool.FindMessageTypeByName(name or own[0])
    except KeyError:
        raise PipelineError(f"the schema has no message {name}; it has {', '.join(own[:20])}") from None
    _refuse_recursive(found, ())
    return found


def _add(pool: Any, waiting: dict[str, Any], name: str, depth: int) -> None:
    if name not in waiting or depth > _FILES_MAX:
        return
    file = waiting[name]
    del waiting[name]
    for each in file.dependency:
        _add(pool, waiting, each, depth + 1)
    pool.Add(file)


@lru_cache(1)
def _well_known() -> tuple[descriptor_pb2.FileDescriptorProto, ...]:
    found = []
    for each in _WELL_KNOWN:
        file = descriptor_pb2.FileDescriptorProto()
        import_module(f"google.protobuf.{each}_pb2").DESCRIPTOR.CopyToProto(file)
        found.append(file)
    return tuple(found)


def _refuse_recursive(found: Any, above: tuple[str, ...]) -> None:
    if found.full_name in above:
        raise PipelineError(
            f"the message {found.full_name} contains itself: a recursive type has no columns in Spark; "
            f"read the values as raw"
        )
    for each in found.fields:
        if each.message_type is not None:
            _refuse_recursive(each.message_type, (*above, found.full_name))


def name_at(file: descriptor_pb2.FileDescriptorProto, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message that the indexes of a frame name, or None if there is none."""
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def indexes_of(found: Any) -> bytes:
    """Return the indexes of a message as its frames have them."""
    path: list[int] = []
    while found is not None:
        siblings = (
            found.containing_type.nested_types
            if found.containing_type
            else list(found.file.message_types_by_name.values())
        )
        path.insert(0, next(n for n, each in enumerate(siblings) if each.full_name == found.full_name))
        found = found.containing_type
    if path == [0]:
        return b"\x00"
    assert all(each < 64 for each in [len(path), *path]), "one byte each"
    return bytes(2 * each for each in [len(path), *path])
