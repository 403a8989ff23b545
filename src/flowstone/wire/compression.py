"""The codecs of record batches: compress, and decompress with a cap on what comes out.

Owns the byte formats that Kafka's clients agree on (gzip, snappy in xerial frames, lz4 frames, zstd). It knows nothing
of batches. Compressed bytes are a peer's: whatever they hold, `decompress` returns at most `max_bytes` or raises
`DecompressError`, and never allocates more than that and one chunk. Any thread may call.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct

import cramjam
import lz4.frame
import zstandard

from flowstone.errors import ApiError, ErrorCode
from flowstone.types import Bytes

CHUNK_BYTES = 1 << 20

# xerial's frame around snappy, as snappy-java writes it: magic, version, oldest compatible version, sized blocks.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES = 32 * 1024
XERIAL_BLOCKS_MAX = 65536  # each costs a turn of a Python loop, however little it holds
_BLOCK_LENGTH = Struct(">I")

_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16: a gzip wrapper, not zlib's
_ZSTD_LEVEL = 3  # zstd's own default


class Codec(IntEnum):
    """Kafka's numbers, as in the low three bits of a batch's attributes. The lower-case name is `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressError(ApiError):
    """The bytes are not of their codec, end too soon, go on too long, or hold more than the cap."""

    def __init__(self, codec: Codec, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()}: {message}")


class _ZstdContexts(threading.local):
    """A context serves one thread at a time and takes as long to make as a batch takes: each thread keeps its own."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return self._compressors[level]


_zstd = _ZstdContexts()


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """`level` is the codec's own scale (snappy has none); None is its default."""
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Bytes, max_bytes: int) -> bytes:
    """The whole content of one stream of `codec`, at most `max_bytes` of it."""
    assert max_bytes > 0
    return _DECOMPRESS[codec](data, max_bytes)


def _too_large(codec: Codec, max_bytes: int) -> DecompressError:
    return DecompressError(codec, f"more than {max_bytes} bytes when decompressed")


def _copy(data: Bytes, level: int | None) -> bytes:
    del level
    return bytes(data)


def _copy_capped(data: Bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _too_large(Codec.NONE, max_bytes)
    return bytes(data)


def _gzip(data: Bytes, level: int | None) -> bytes:
    default = zlib.Z_DEFAULT_COMPRESSION
    compressor = zlib.compressobj(default if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()


def _gunzip(data: Bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    rest: Bytes = data
    chunks: list[bytes] = []
    room_bytes = max_bytes
    while not stream.eof:
        try:
            chunk = stream.decompress(rest, min(CHUNK_BYTES, room_bytes + 1))
        except zlib.error as error:
            raise DecompressError(Codec.GZIP, str(error)) from error
        if len(chunk) > room_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        if not stream.eof and not chunk:
            raise DecompressError(Codec.GZIP, "ends too soon")
        chunks.append(chunk)
        room_bytes -= len(chunk)
        rest = stream.unconsumed_tail
    if stream.unused_data:
        raise DecompressError(Codec.GZIP, "bytes after the end")
    return b"".join(chunks)


def _snappy(data: Bytes, level: int | None) -> bytes:
    del level
    view = memoryview(data)
    parts: list[Bytes] = [XERIAL_HEADER]
    for position in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[position : position + XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: Bytes, max_bytes: int) -> bytes:
    """Java and most clients write xerial's frame, librdkafka a bare block; a reader tells them apart by the magic."""
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return bytes(_unsnappy_block(view, max_bytes))
    if len(view) < len(XERIAL_HEADER):
        raise DecompressError(Codec.SNAPPY, "ends too soon")
    blocks: list[memoryview] = []
    size_bytes = 0
    position = len(XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise DecompressError(Codec.SNAPPY, "ends too soon")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length > len(view) - position:
            raise DecompressError(Codec.SNAPPY, "ends too soon")
        if len(blocks) == XERIAL_BLOCKS_MAX:
            raise DecompressError(Codec.SNAPPY, f"more than {XERIAL_BLOCKS_MAX} blocks")
        block = _unsnappy_block(view[position : position + length], max_bytes - size_bytes)
        blocks.append(block)
        size_bytes += len(block)
        position += length
    return b"".join(blocks)


def _unsnappy_block(block: memoryview, max_bytes: int) -> memoryview:
    try:
        if cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise _too_large(Codec.SNAPPY, max_bytes)
        return memoryview(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise DecompressError(Codec.SNAPPY, str(error)) from error


def _lz4(data: Bytes, level: int | None) -> bytes:
    """Blocks of 64 KB, independent, no content size: Kafka's Java reader refuses linked blocks."""
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=lz4.frame.COMPRESSIONLEVEL_MIN if level is None else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return frame


def _unlz4(data: Bytes, max_bytes: int) -> bytes:
    context = lz4.frame.create_decompression_context()
    rest = memoryview(data)
    chunks: list[bytes] = []
    room_bytes = max_bytes
    at_end = False
    while not at_end:
        try:
            chunk, consumed, at_end = lz4.frame.decompress_chunk(context, rest, min(CHUNK_BYTES, room_bytes + 1))
        except RuntimeError as error:
            raise DecompressError(Codec.LZ4, str(error)) from error
        if len(chunk) > room_bytes:
            raise _too_large(Codec.LZ4, max_bytes)
        if not at_end and not chunk and not consumed:
            raise DecompressError(Codec.LZ4, "ends too soon")
        chunks.append(chunk)
        room_bytes -= len(chunk)
        rest = rest[consumed:]
    if rest:
        raise DecompressError(Codec.LZ4, "bytes after the end")
    return b"".join(chunks)


def _zstd_compress(data: Bytes, level: int | None) -> bytes:
    return _zstd.compressor(_ZSTD_LEVEL if level is None else level).compress(data)


def _zstd_decompress(data: Bytes, max_bytes: int) -> bytes:
    """In one call into a buffer of the frame's stated size, else of the cap: pages nobody writes cost nothing."""
    try:
        if zstandard.frame_content_size(data) > max_bytes:
            raise _too_large(Codec.ZSTD, max_bytes)
        return _zstd.decompressor.decompress(data, max_output_size=max_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DecompressError(Codec.ZSTD, f"{error} (at most {max_bytes} bytes)") from error


_COMPRESS: dict[Codec, Callable[[Bytes, int | None], bytes]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd_compress,
}
_DECOMPRESS: dict[Codec, Callable[[Bytes, int], bytes]] = {
    Codec.NONE: _copy_capped,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _zstd_decompress,
}
