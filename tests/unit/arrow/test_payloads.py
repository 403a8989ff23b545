"""Decompressing into memory that is used again: the same bytes as the codecs give by themselves."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flowstone.arrow.payloads import BUFFER_BYTES_MIN, PayloadReader
from flowstone.errors import ApiError
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    BatchHeader,
    Record,
    build_batch,
    encode_header,
    parse_header,
    read_payload,
)

INTO_MEMORY = (Codec.LZ4, Codec.ZSTD)
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def batch(codec: Codec, value_bytes: int) -> tuple[memoryview, int, BatchHeader]:
    """Its bytes, where it begins in them, its header."""
    data = memoryview(build_batch([Record(0, 0, None, b"abcd" * (value_bytes // 4))], codec=codec))
    return data, 0, parse_header(data)


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("value_bytes", [100, BUFFER_BYTES_MIN - 100, 3 * BUFFER_BYTES_MIN])
def test_a_payload_is_what_its_codec_says(codec: Codec, value_bytes: int) -> None:
    buffer, size_bytes = PayloadReader(pa.allocate_buffer).read(*batch(codec, value_bytes))
    assert buffer.to_pybytes()[:size_bytes] == read_payload(*batch(codec, value_bytes))


@pytest.mark.parametrize("codec", INTO_MEMORY)
def test_one_batch_after_the_other_uses_the_same_memory(codec: Codec) -> None:
    reader = PayloadReader(pa.allocate_buffer)
    addresses = {reader.read(*batch(codec, value_bytes)).buffer.address for value_bytes in (100, 5000, 700_000)}
    assert len(addresses) == 1


@pytest.mark.parametrize("codec", INTO_MEMORY)
def test_after_a_large_batch_there_is_space_for_the_next_one(codec: Codec) -> None:
    reader = PayloadReader(pa.allocate_buffer)
    reader.read(*batch(codec, 3 * BUFFER_BYTES_MIN))
    buffers = [reader.read(*batch(codec, 3 * BUFFER_BYTES_MIN)).buffer for _ in range(2)]
    assert buffers[0] is buffers[1]


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("cut_bytes", [1, 7])
def test_a_payload_that_is_cut_off_is_refused(codec: Codec, cut_bytes: int) -> None:
    data, _, header = batch(codec, 10_000)
    cut = header._replace(batch_length=header.batch_length - cut_bytes)
    with pytest.raises(ApiError):
        PayloadReader(pa.allocate_buffer).read(data[: len(data) - cut_bytes], 0, cut)


def stored(codec: Codec, payload: bytes) -> tuple[memoryview, int, BatchHeader]:
    header = parse_header(build_batch([Record(0, 0, None, b"v")]))._replace(attributes=codec)
    data = memoryview(encode_header(header, payload) + payload)
    return data, 0, parse_header(data)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_the_codecs_refuse_by_themselves_is_refused(codec: Codec) -> None:
    """A fast way of its own must not read what the broker and other readers do not."""
    whole = compress(codec, b"abcd" * 100)
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    for payload in (whole + whole, whole + skippable, skippable + whole, whole + b"\x00"):
        with pytest.raises(ApiError):
            read_payload(*stored(codec, payload))
        with pytest.raises(ApiError):
            PayloadReader(pa.allocate_buffer).read(*stored(codec, payload))
