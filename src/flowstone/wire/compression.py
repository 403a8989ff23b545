"""The codecs of record batches: compression, and decompression with a size limit.

Owns the byte formats that Kafka's clients use (gzip, snappy in xerial frames, lz4 frames, zstd). The module knows
nothing of batches. Compressed bytes come from a peer: `decompress` returns at most `max_bytes` or raises
`DecompressError`, and allocates at most `max_bytes`, an eighth of it, two chunks and a zstd window. Any thread may call
it, and it does not block other threads.

A payload must be exactly one gzip member, one lz4 or zstd frame without a dictionary, or one snappy stream. This rule
applies to the broker and to our own readers. Clients handle concatenated frames, skippable frames and trailing bytes
differently, so such payloads are refused (`check_single_frame`).
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
from flowstone.kernel.frames import Frame, FrameStatus, scan_lz4_frame, scan_zstd_frame
from flowstone.types import Bytes

CHUNK_BYTES = 1 << 20
# Maximum input per call: zlib copies the unconsumed input whenever its output is full.
GZIP_INPUT_BYTES = 64 << 10
# Maximum zstd window, which RFC 8878 recommends decoders to support. A frame that declares a larger
# window is decoded only if its content is no larger than this.
ZSTD_WINDOW_BYTES_MAX = 8 << 20
_ZSTD_STATED_WINDOW_BYTES_MAX = 128 << 20  # zstd's own limit, up to level 22

# xerial's frame around snappy, as snappy-java writes it: magic, version, oldest compatible version, sized blocks.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES = 32 * 1024
XERIAL_BLOCKS_MAX = 65536  # each costs an iteration of a Python loop, however small it is
XERIAL_BLOCK_BYTES_MIN = 512  # if blocks are smaller on average, this limit is reached before the size limit
_BLOCK_LENGTH = Struct(">I")

LZ4_MAGIC = 0x184D2204
LZ4_FLAGS_POSITION = 4
LZ4_INDEPENDENT_FLAG = 0x20
LZ4_DICTIONARY_FLAG = 0x01
LZ4_HEADER_BYTES_MIN = 7
LZ4_SMALL_FRAME_BYTES = 32 << 10
LZ4_SMALL_CONTENT_BYTES = 64 << 10
_LZ4_HEAD = Struct("<IB")
_FRAME_ERRORS = {
    FrameStatus.TRUNCATED: "ends too early",
    FrameStatus.NO_MAGIC: "no frame starts here",
    FrameStatus.SKIPPABLE: "a skippable frame",
    FrameStatus.RESERVED_BITS: "a frame of an unknown version",
    FrameStatus.BAD_BLOCK: "an invalid block",
}
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS  # 16: a gzip wrapper, not zlib's
_ZSTD_LEVEL = 3  # zstd's own default


class Codec(IntEnum):
    """Kafka's codec numbers, as in the low three bits of a batch's attributes; the lower-case name is
    `compression.type`.
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressError(ApiError):
    """The bytes are not valid for their codec, end too early, have trailing bytes, or exceed the limit."""

    def __init__(self, codec: Codec, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{codec.name.lower()}: {message}")


class PayloadTooLarge(DecompressError):
    """The decompressed size exceeds the limit."""


class _ZstdContexts(threading.local):
    """Zstd contexts, one per thread: creating one takes as long as decompressing a batch."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        self._compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        if level not in self._compressors:
            self._compressors[level] = zstandard.ZstdCompressor(level=level)
        return self._compressors[level]


_zstd = _ZstdContexts()
_SCANS = {Codec.LZ4: scan_lz4_frame, Codec.ZSTD: scan_zstd_frame}


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """Return `data` compressed at `level` of the codec's own scale (snappy has none); None is the codec's default."""
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec, data: Bytes, max_bytes: int) -> Bytes:
    """Return the whole content of one stream of `codec`.

    Raises PayloadTooLarge if the content exceeds `max_bytes`, and DecompressError if `data` is not exactly one stream.
    """
    assert max_bytes > 0
    return _DECOMPRESS[codec](data, max_bytes)


def check_single_frame(codec: Codec, data: Bytes) -> Frame:
    """Return the extent of an lz4 or zstd frame, for readers that use another decoder than `decompress`.

    Raises DecompressError if `data` is not exactly one frame without a dictionary.
    """
    frame = _SCANS[codec](data)
    if frame.status:
        raise DecompressError(codec, _FRAME_ERRORS[frame.status])
    if frame.frame_bytes != len(data):
        raise DecompressError(codec, f"{len(data) - frame.frame_bytes} bytes after the end of the first frame")
    if frame.dictionary_id:
        raise DecompressError(codec, f"needs dictionary {frame.dictionary_id}, which no reader has")
    return frame


def check_portable(codec: Codec, data: Bytes) -> None:
    """Raise DecompressError if some clients cannot read `data`: lz4 with linked blocks."""
    if codec is Codec.LZ4 and len(data) > LZ4_FLAGS_POSITION and not data[LZ4_FLAGS_POSITION] & LZ4_INDEPENDENT_FLAG:
        raise DecompressError(Codec.LZ4, "linked blocks, which Java's clients cannot read; use independent ones")


def _too_large(codec: Codec, max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(codec, f"more than {max_bytes} bytes when decompressed")


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


def _gunzip(data: Bytes, max_bytes: int) -> Bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    view = memoryview(data)
    position = min(GZIP_INPUT_BYTES, len(view))
    piece: Bytes = view[:position]
    content: Bytes = b""
    while True:
        try:
            chunk = stream.decompress(piece, min(CHUNK_BYTES, max_bytes - len(content) + 1))
        except zlib.error as error:
            raise DecompressError(Codec.GZIP, str(error)) from error
        if len(content) + len(chunk) > max_bytes:
            raise _too_large(Codec.GZIP, max_bytes)
        content = _grow(content, chunk)
        if stream.eof:
            break
        piece = stream.unconsumed_tail
        if not piece and position < len(view):
            piece = view[position : position + GZIP_INPUT_BYTES]
            position += len(piece)
        elif not piece and not chunk:
            raise DecompressError(Codec.GZIP, "ends too early")
    if stream.unused_data or position < len(view):
        raise DecompressError(Codec.GZIP, "bytes after the end")
    return content


def _grow(content: Bytes, chunk: bytes) -> Bytes:
    """Return the content with the next chunk appended in place, so that the content is in memory only once."""
    if not content:
        return chunk
    grown = content if isinstance(content, bytearray) else bytearray(content)
    grown += chunk
    return grown


def _snappy(data: Bytes, level: int | None) -> bytes:
    del level
    view = memoryview(data)
    parts: list[Bytes] = [XERIAL_HEADER]
    for position in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[position : position + XERIAL_BLOCK_BYTES]))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: Bytes, max_bytes: int) -> Bytes:
    """Return the content of a xerial frame (Java and most clients) or a bare block (librdkafka), by its magic bytes."""
    view = memoryview(data)
    blocks = _xerial_blocks(view, max_bytes) if view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC else [view]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        size_bytes = sum(sizes)
        if size_bytes > max_bytes:
            raise _too_large(Codec.SNAPPY, max_bytes)
        content = bytearray(size_bytes)
        target, position = memoryview(content), 0
        for block, size in zip(blocks, sizes, strict=True):
            position += cramjam.snappy.decompress_raw_into(block, target[position : position + size])
    except cramjam.DecompressionError as error:
        raise DecompressError(Codec.SNAPPY, str(error)) from error
    if position != size_bytes:
        raise DecompressError(Codec.SNAPPY, f"{position} bytes instead of {size_bytes}")
    return content


def _xerial_blocks(view: memoryview, max_bytes: int) -> list[memoryview]:
    blocks_max = min(max_bytes // XERIAL_BLOCK_BYTES_MIN + 16, XERIAL_BLOCKS_MAX)
    if len(view) < len(XERIAL_HEADER):
        raise DecompressError(Codec.SNAPPY, "ends too early")
    blocks: list[memoryview] = []
    position = len(XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise DecompressError(Codec.SNAPPY, "ends too early")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length > len(view) - position:
            raise DecompressError(Codec.SNAPPY, "ends too early")
        if len(blocks) == blocks_max:
            told = f"more than {blocks_max} blocks"
            is_cap = blocks_max < XERIAL_BLOCKS_MAX
            raise PayloadTooLarge(Codec.SNAPPY, told) if is_cap else DecompressError(Codec.SNAPPY, told)
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _lz4(data: Bytes, level: int | None) -> bytes:
    """Return an lz4 frame with independent blocks of 64 KB and no content size: Kafka's Java reader refuses linked
    blocks.
    """
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=lz4.frame.COMPRESSIONLEVEL_MIN if level is None else level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return frame


def _unlz4(data: Bytes, max_bytes: int) -> Bytes:
    if LZ4_HEADER_BYTES_MIN <= len(data) <= LZ4_SMALL_FRAME_BYTES:
        content = _small_lz4_frame(data, max_bytes)
        if content is not None:
            return content
    return _any_lz4_frame(data, max_bytes)


def _small_lz4_frame(data: Bytes, max_bytes: int) -> bytes | None:
    """Return the content of the most common kind of frame without scanning its blocks; None for any other."""
    magic, flags = _LZ4_HEAD.unpack_from(data)
    if magic != LZ4_MAGIC or flags & LZ4_DICTIONARY_FLAG:
        return None
    context, output_bytes = lz4.frame.create_decompression_context(), min(LZ4_SMALL_CONTENT_BYTES, max_bytes)
    try:
        content: bytes
        content, consumed, at_end = lz4.frame.decompress_chunk(context, data, output_bytes)
    except RuntimeError:
        return None
    return content if at_end and consumed == len(data) else None


def _any_lz4_frame(data: Bytes, max_bytes: int) -> Bytes:
    frame = check_single_frame(Codec.LZ4, data)
    context = lz4.frame.create_decompression_context()
    rest = memoryview(data)
    content: Bytes = b""
    at_end = False
    while not at_end:
        output_bytes = min(CHUNK_BYTES, frame.content_bytes_max + 1, max_bytes - len(content) + 1)
        try:
            chunk, consumed, at_end = lz4.frame.decompress_chunk(context, rest, output_bytes)
        except RuntimeError as error:
            raise DecompressError(Codec.LZ4, str(error)) from error
        if len(content) + len(chunk) > max_bytes:
            raise _too_large(Codec.LZ4, max_bytes)
        if not at_end and not chunk and not consumed:
            raise DecompressError(Codec.LZ4, "ends too early")
        content = _grow(content, chunk)
        rest = rest[consumed:]
    return content


def _zstd_compress(data: Bytes, level: int | None) -> bytes:
    return _zstd.compressor(_ZSTD_LEVEL if level is None else level).compress(data)


def _zstd_decompress(data: Bytes, max_bytes: int) -> Bytes:
    """Decompress into one buffer of the frame's declared size, or of the maximum size of its blocks."""
    frame = check_single_frame(Codec.ZSTD, data)
    is_stated = frame.content_bytes >= 0
    decompressor, most_bytes = _zstd.decompressor, max_bytes
    if frame.window_bytes > ZSTD_WINDOW_BYTES_MAX:
        # Only the part of the window with content uses memory, which is freed with the decompressor.
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_STATED_WINDOW_BYTES_MAX)
        most_bytes = max_bytes if is_stated else min(max_bytes, ZSTD_WINDOW_BYTES_MAX)
    size_bytes = frame.content_bytes if is_stated else frame.content_bytes_max
    if is_stated and size_bytes > max_bytes:
        raise _too_large(Codec.ZSTD, max_bytes)
    if not frame.content_bytes_max:
        return b""
    try:
        return decompressor.decompress(data, max_output_size=min(size_bytes, most_bytes), allow_extra_data=False)
    except zstandard.ZstdError as error:
        if size_bytes > max_bytes:
            raise _too_large(Codec.ZSTD, max_bytes) from error
        if size_bytes > most_bytes:
            told = f"a window of {frame.window_bytes} bytes for more than {most_bytes} bytes of content"
            raise DecompressError(Codec.ZSTD, told) from error
        raise DecompressError(Codec.ZSTD, str(error)) from error


_COMPRESS: dict[Codec, Callable[[Bytes, int | None], bytes]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd_compress,
}
_DECOMPRESS: dict[Codec, Callable[[Bytes, int], Bytes]] = {
    Codec.NONE: _copy_capped,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _zstd_decompress,
}
