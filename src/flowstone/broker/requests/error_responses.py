"""The response of an API that failed with one error code, made from the request by the schema alone.

The error goes into the outermost struct that has an error field: the response itself, or else one entry for each entry
of the request (topics, partitions, groups…), found by walking the two schemas side by side. Fetch has the field in both
places, and clients expect a partition's error in the partition. Pure: knows nothing of brokers, sockets or faults.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from typing import Any

from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import generated
from flowstone.wire.schema import ApiSchema, Field, Struct, load_api

ERROR_FIELDS = ("error_code", "partition_error_code")
MESSAGE_FIELD = "error_message"
# Response fields whose request field has another name.
_SAME = {"partition_index": "partition"}
_ERRORS_OF_ENTRIES = frozenset({"Fetch"})
_UNKNOWN = -1
# Entries made before other work may run.
ENTRIES_AT_ONCE = 500
_load_api = cache(load_api)
_Entries = Generator[None, None, dict[str, list[Message]]]


def error_response(api_name: str, version: int, request: Message, code: ErrorCode, message: str) -> Message | None:
    """Return the response with this error, or None if this version's response has no field for one."""
    making = error_response_in_slices(api_name, version, request, code, message)
    while True:
        try:
            next(making)
        except StopIteration as end:
            response: Message | None = end.value
            return response


def error_response_in_slices(
    api_name: str, version: int, request: Message, code: ErrorCode, message: str
) -> Generator[None, None, Message | None]:
    """Make the response of `error_response` in time slices, for a request of many entries."""
    schema: ApiSchema = _load_api(api_name)
    mirror = _Mirror(version, code, message)
    response = _new(schema.response)
    entries = {}
    if not has_error_of_its_own(api_name, version):
        entries = yield from mirror.entries(schema.response, schema.request, request)
    if not entries and _has_error(schema.response, version):
        mirror.set_error(schema.response, response)
        return response
    for name, values in entries.items():
        setattr(response, name, values)
    return response if entries else None


def empty_error_response(api_name: str, version: int, code: ErrorCode) -> Message:
    """Return the response to a request whose body was not parsed: the error, if there is a field, and no entries."""
    schema: ApiSchema = _load_api(api_name)
    response = _new(schema.response)
    if _has_error(schema.response, version):
        _Mirror(version, code, "").set_error(schema.response, response)
    return response


def has_error_of_its_own(api_name: str, version: int) -> bool:
    """Return whether the error of a whole request is a field of the response itself, and not of its entries."""
    return api_name not in _ERRORS_OF_ENTRIES and _has_error(_load_api(api_name).response, version)


def refused_entries(api_name: str, version: int, request: Message, code: ErrorCode, message: str) -> _Entries:
    """Make the response's arrays with an entry with this error for each entry of the request, in time slices."""
    schema: ApiSchema = _load_api(api_name)
    return _Mirror(version, code, message).entries(schema.response, schema.request, request)


class _Mirror:
    """Creates the response's entries that refuse the entries of a request."""

    def __init__(self, version: int, code: ErrorCode, message: str) -> None:
        self._version, self._code, self._message = version, code, message
        self._made = 0

    def entries(self, answer: Struct, asked: Struct, request: Any) -> _Entries:
        """Return the response's arrays whose entries have error codes, by name, without empty ones."""
        found = {}
        for field in _arrays(answer, self._version):
            source = self._source(field, asked)
            if field.struct is None or source is None or not _tells_errors(field.struct, self._version):
                continue
            values = []
            for each in getattr(request, source.name) or ():
                values.append((yield from self._entry(field.struct, source, each)))
                self._made += 1
                if not self._made % ENTRIES_AT_ONCE:
                    yield
            if values:
                found[field.name] = values
        return found

    def set_error(self, struct: Struct, answer: Any) -> None:
        for field in struct.fields:
            if field.name in ERROR_FIELDS:
                setattr(answer, field.name, self._code)
            elif field.name == MESSAGE_FIELD:
                answer.error_message = self._message
            elif field.type == "int64" and not field.default:
                setattr(answer, field.name, _UNKNOWN)  # offsets, watermarks: zero would be one of them
            elif field.type == "records":
                setattr(answer, field.name, b"")

    def _source(self, field: Field, asked: Struct) -> Field | None:
        """Return the request's array that the response's array answers: the one of the same name, or else the first."""
        arrays = list(_arrays(asked, self._version))
        return next((each for each in arrays if each.name == field.name), arrays[0] if arrays else None)

    def _entry(self, struct: Struct, source: Field, asked: Any) -> Generator[None, None, Message]:
        answer = _new(struct)
        if source.struct is None:
            # A bare name or number is the key of its entry: the entry's first field of that type.
            key = next(each for each in struct.fields if each.type == source.type and each.name != MESSAGE_FIELD)
            setattr(answer, key.name, asked)
        else:
            names = {field.name for field in source.struct.fields}
            for field in struct.fields:
                name = field.name if field.name in names else _SAME.get(field.name, "")
                if name in names and not field.is_array:
                    setattr(answer, field.name, getattr(asked, name))
        if _has_error(struct, self._version):
            self.set_error(struct, answer)
        elif source.struct is not None:
            nested = yield from self.entries(struct, source.struct, asked)
            for name, values in nested.items():
                setattr(answer, name, values)
        return answer


def _new(struct: Struct) -> Message:
    message: Message = getattr(generated, struct.name)()
    for field in struct.fields:
        if field.struct is not None and not field.is_array and field.nullable is None and field.tag is None:
            setattr(message, field.name, _new(field.struct))
    return message


def _arrays(struct: Struct, version: int) -> Iterator[Field]:
    return (field for field in struct.fields if field.is_array and version in field.versions)


def _has_error(struct: Struct, version: int) -> bool:
    return any(field.name in ERROR_FIELDS and version in field.versions for field in struct.fields)


def _tells_errors(struct: Struct, version: int) -> bool:
    """Return whether the struct, or one nested in it, has an error code."""
    inner = (field.struct for field in _arrays(struct, version) if field.struct is not None)
    return _has_error(struct, version) or any(_tells_errors(each, version) for each in inner)
