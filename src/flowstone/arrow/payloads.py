"""Reader of batches' records that decompresses them into a reused buffer.

Owns the fast decompression of the codecs that support it. `wire.compression` defines which payloads are valid: exactly
one frame. If the fast way fails, also for lack of memory, `wire.record_batch` handles the batch, enforces the limits
and raises the error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cramjam
import pyarrow as pa

from flowstone.kernel.columns import Allocate
from flowstone.types import Bytes
from flowstone.wire.compression import ZSTD_WINDOW_BYTES_MAX, Codec, check_single_frame
from flowstone.wire.record_batch import HEADER_BYTES, PAYLOAD_BYTES_MAX, BatchHeader, read_payload

# Initial size; most producers fill their batches up to a megabyte at most.
BUFFER_BYTES_MIN = 1 << 20

_INTO = {Codec.LZ4: cramjam.lz4.decompress_into, Codec.ZSTD: cramjam.zstd.decompress_into}


class Payload(NamedTuple):
    """The first `size_bytes` of `buffer`, valid until the next batch is read."""

    buffer: Any
    size_bytes: int


class PayloadReader:
    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._buffer: Any = None

    def read(self, records: memoryview, at: int, header: BatchHeader) -> Payload:
        """Return the records of the whole batch at `at`. Raises ApiError if its payload is invalid or too large."""
        decompress_into = _INTO.get(header.codec)
        if decompress_into is not None:
            stored = records[at + HEADER_BYTES : at + header.size_bytes]
            frame = check_single_frame(header.codec, stored)
            if self._buffer is None:
                self._buffer = self._allocate(BUFFER_BYTES_MIN)
            if frame.window_bytes <= ZSTD_WINDOW_BYTES_MAX:
                try:
                    return Payload(self._buffer, decompress_into(stored, memoryview(self._buffer)))
                except cramjam.DecompressionError:
                    pass
        payload = read_payload(records, at, header)
        self._expect(payload)
        return Payload(pa.py_buffer(payload), len(payload))

    def _expect(self, payload: Bytes) -> None:
        """Enlarge the buffer to the payload's size, because the next batches are likely to be as large."""
        if self._buffer is not None and self._buffer.size < len(payload):
            self._buffer = None
            self._buffer = self._allocate(min(len(payload) * 5 // 4, PAYLOAD_BYTES_MAX))
