"""Encoders and decoders of messages, compiled on first use per API, version and direction.

A decoder takes a view of a whole frame and the position of the body, and returns the message. It raises
`ProtocolError`, and nothing else, if a byte is malformed. It ignores bytes after the body, as Kafka does. `records`
fields become views of the frame: a caller that keeps them keeps the frame.

An encoder returns a list of chunks. The fields between two `records` values are one bytes object; the `records` values
are in the list by reference, whatever their type (an object with a length may stand for a slice of a file).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, cast

from flowstone.errors import ProtocolError
from flowstone.wire import primitives
from flowstone.wire.apis import APIS
from flowstone.wire.decoder_source import DecoderSource
from flowstone.wire.encoder_source import EncoderSource
from flowstone.wire.message import Chunk, Message
from flowstone.wire.messages import generated
from flowstone.wire.schema import FIXED_CODES, ApiSchema, Struct, load_api

Decoder = Callable[[memoryview, int], Message]
Encoder = Callable[[Message], list[Chunk]]
# The same in slices: generators that yield regularly and return the same results.
SlicedDecoder = Callable[[memoryview, int], Generator[None, None, Message]]
SlicedEncoder = Callable[[Message], Generator[None, None, list[Chunk]]]

_HELPERS: dict[str, object] = {
    "ProtocolError": ProtocolError,
    # The errors that generated code raises when it reads past the end or decodes invalid UTF-8.
    "MALFORMED": (struct.error, IndexError, ValueError),
    "new": object.__new__,
    "read_uvarint": primitives.read_uvarint,
    "read_tag": primitives.read_tag,
    "read_tag_count": primitives.read_tag_count,
    "skip_tags": primitives.skip_tags,
    "check_array_length": primitives.check_array_length,
    "encode_uvarint": primitives.encode_uvarint,
    "encode_tags": primitives.encode_tags,
    "ONE_BYTE": primitives.ONE_BYTE,
    **{f"pack_{name}s": primitives.ArrayCalls(code, "pack") for name, code in FIXED_CODES.items()},
    **{f"unpack_{name}s": primitives.ArrayCalls(code, "unpack_from") for name, code in FIXED_CODES.items()},
}

_PRODUCE_KEY = 0
# Limits for requests that may have fewer elements, because each element occupies the event loop.
_ELEMENTS_MAX = {_PRODUCE_KEY: primitives.PRODUCE_ELEMENTS_MAX}


@cache
def request_decoder(api_key: int, version: int) -> Decoder:
    schema = _schema(api_key, version)
    return compile_decoder(
        schema.request,
        version,
        schema.is_flexible(version),
        vars(generated),
        nested_max=primitives.NESTED_ELEMENTS_MAX,
        elements_max=_ELEMENTS_MAX.get(api_key),
    )


@cache
def sliced_request_decoder(api_key: int, version: int) -> SlicedDecoder:
    """Return a decoder that works in slices: decoding 100,000 elements takes tenths of a second."""
    schema = _schema(api_key, version)
    nested_max = primitives.NESTED_ELEMENTS_MAX
    flexible = schema.is_flexible(version)
    source = DecoderSource(schema.request, version, flexible, nested_max=nested_max, in_slices=True)
    return cast(SlicedDecoder, _compiled_decoder(source, schema.request, version, vars(generated)))


@cache
def sliced_response_encoder(api_key: int, version: int) -> SlicedEncoder:
    """Return an encoder that works in slices, for large responses."""
    schema = _schema(api_key, version)
    source = EncoderSource(schema.response, version, schema.is_flexible(version), in_slices=True)
    return cast(SlicedEncoder, _compiled_encoder(source, schema.response, version))


@cache
def response_decoder(api_key: int, version: int) -> Decoder:
    schema = _schema(api_key, version)
    return compile_decoder(schema.response, version, schema.is_flexible(version), vars(generated))


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    schema = _schema(api_key, version)
    return compile_encoder(schema.request, version, schema.is_flexible(version))


@cache
def response_encoder(api_key: int, version: int) -> Encoder:
    schema = _schema(api_key, version)
    return compile_encoder(schema.response, version, schema.is_flexible(version))


def compile_decoder(
    message: Struct,
    version: int,
    flexible: bool,
    classes: dict[str, object],
    *,
    nested_max: int | None = None,
    elements_max: int | None = None,
) -> Decoder:
    source = DecoderSource(message, version, flexible, nested_max=nested_max, elements_max=elements_max)
    return cast(Decoder, _compiled_decoder(source, message, version, classes))


def compile_encoder(message: Struct, version: int, flexible: bool) -> Encoder:
    return cast(Encoder, _compiled_encoder(EncoderSource(message, version, flexible), message, version))


def _compiled_decoder(source: DecoderSource, message: Struct, version: int, classes: dict[str, object]) -> Any:
    unpackers = {name: struct.Struct(code).unpack_from for name, code in source.formats.items()}
    namespace = classes | _HELPERS | unpackers
    return _execute(source.text, f"<decoder of {message.name} {version}>", namespace)["decode"]


def _compiled_encoder(source: EncoderSource, message: Struct, version: int) -> Any:
    packers = {name: struct.Struct(code).pack for name, code in source.formats.items()}
    return _execute(source.text, f"<encoder of {message.name} {version}>", _HELPERS | packers)["encode"]


def _execute(text: str, file_name: str, namespace: dict[str, object]) -> dict[str, object]:
    """Execute generated source code; return the namespace with the names that it defines."""
    exec(compile(text, file_name, "exec"), namespace)
    return namespace


def _schema(api_key: int, version: int) -> ApiSchema:
    api = APIS.get(api_key)
    if api is None or not api.has_version(version):
        raise ProtocolError(f"there is no version {version} of API {api_key}")
    return _load_api(api.name)


_load_api = cache(load_api)
