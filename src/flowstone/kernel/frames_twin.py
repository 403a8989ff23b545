"""Determination of a compressed frame's extent in Python: the reference for frames.c and the fallback without it.

Owns the contract (`FrameStatus`, `Frame`). Only headers are read; a decoder must check the content. The bytes come from
a peer and may contain anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from flowstone.types import Bytes

_INT64_MAX = 2**63 - 1
_SKIPPABLE_MAGIC, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX = 128 << 10
_LZ4_MAGIC = 0x184D2204
_CHECKSUM_BYTES = 4


class FrameStatus(IntEnum):
    """The result of a scan: a whole frame, or its defect. Keep equal to `enum frame_status` in frames.c."""

    WHOLE = 0
    TRUNCATED = 1  # the bytes end inside the frame
    NO_MAGIC = 2  # the frame is not of its codec
    SKIPPABLE = 3  # a skippable frame: it has no content
    RESERVED_BITS = 4  # the header has reserved bits set or another version
    BAD_BLOCK = 5  # a block with an invalid type or size


class Frame(NamedTuple):
    """The values in the headers of a frame. All values except the status are valid only if the status is WHOLE."""

    status: FrameStatus
    frame_bytes: int
    window_bytes: int  # bytes that a decoder must keep; for lz4, the largest block
    content_bytes: int  # -1: not stated
    content_bytes_max: int  # the maximum content of the blocks, whatever size is declared
    dictionary_id: int  # 0: none


class _Bad(Exception):
    def __init__(self, status: FrameStatus) -> None:
        self.status = status


class _Reader:
    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.position = 0

    def number(self, size_bytes: int) -> int:
        """Read a little-endian number of `size_bytes` bytes."""
        begin = self.position
        self.skip(size_bytes)
        return int.from_bytes(self._data[begin : self.position], "little")

    def skip(self, size_bytes: int) -> None:
        self.require(size_bytes)
        self.position += size_bytes

    def require(self, size_bytes: int) -> None:
        if size_bytes > len(self._data) - self.position:
            raise _Bad(FrameStatus.TRUNCATED)


def scan_zstd_frame(data: Bytes) -> Frame:
    """Return the header values of the zstd frame at the start of `data`."""
    try:
        return _scan_zstd(_Reader(data))
    except _Bad as bad:
        return Frame(bad.status, 0, 0, 0, 0, 0)


def scan_lz4_frame(data: Bytes) -> Frame:
    """Return the header values of the lz4 frame at the start of `data`."""
    try:
        return _scan_lz4(_Reader(data))
    except _Bad as bad:
        return Frame(bad.status, 0, 0, 0, 0, 0)


def _check_magic(reader: _Reader, expected: int, head_bytes: int) -> None:
    reader.require(head_bytes)
    magic = reader.number(4)
    if magic & _SKIPPABLE_MASK == _SKIPPABLE_MAGIC:
        raise _Bad(FrameStatus.SKIPPABLE)
    if magic != expected:
        raise _Bad(FrameStatus.NO_MAGIC)


def _scan_zstd(reader: _Reader) -> Frame:
    _check_magic(reader, _ZSTD_MAGIC, 5)
    descriptor = reader.number(1)
    is_single_segment = descriptor >> 5 & 1
    id_bytes = (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    if descriptor & 8:
        raise _Bad(FrameStatus.RESERVED_BITS)
    reader.require(1 - is_single_segment + id_bytes + size_bytes)
    window_bytes, content_bytes = 0, -1
    if not is_single_segment:
        window = reader.number(1)
        base = 1 << 10 + (window >> 3)
        window_bytes = base + base // 8 * (window & 7)
    dictionary_id = reader.number(id_bytes)
    if size_bytes:
        content_bytes = min((reader.number(size_bytes) + (256 if size_bytes == 2 else 0)) % 2**64, _INT64_MAX)
    if is_single_segment:
        window_bytes = content_bytes
    content_bytes_max = _scan_zstd_blocks(reader, min(window_bytes, _ZSTD_BLOCK_BYTES_MAX))
    if descriptor & 4:
        reader.skip(_CHECKSUM_BYTES)
    return Frame(FrameStatus.WHOLE, reader.position, window_bytes, content_bytes, content_bytes_max, dictionary_id)


def _scan_zstd_blocks(reader: _Reader, block_bytes_max: int) -> int:
    content_bytes_max, is_last = 0, 0
    while not is_last:
        head = reader.number(3)
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        if kind == 3 or size > _ZSTD_BLOCK_BYTES_MAX:
            raise _Bad(FrameStatus.BAD_BLOCK)
        reader.skip(1 if kind == 1 else size)
        content_bytes_max += block_bytes_max if kind == 2 else size
    return content_bytes_max


def _scan_lz4(reader: _Reader) -> Frame:
    _check_magic(reader, _LZ4_MAGIC, 7)
    flags, sizes = reader.number(1), reader.number(1)
    if flags & 0xC2 != 0x40 or sizes & 0x8F or sizes < 0x40:
        raise _Bad(FrameStatus.RESERVED_BITS)
    block_bytes_max = 1 << 8 + 2 * (sizes >> 4)
    block_checksum_bytes = _CHECKSUM_BYTES if flags & 0x10 else 0
    reader.require((8 if flags & 8 else 0) + (4 if flags & 1 else 0) + 1)
    content_bytes = min(reader.number(8), _INT64_MAX) if flags & 8 else -1
    dictionary_id = reader.number(4) if flags & 1 else 0
    reader.skip(1)  # the header's checksum, which the decoder verifies
    content_bytes_max = 0
    while head := reader.number(4):
        size = head & 0x7FFFFFFF
        if size > block_bytes_max:
            raise _Bad(FrameStatus.BAD_BLOCK)
        reader.skip(size + block_checksum_bytes)
        content_bytes_max += size if head >> 31 else block_bytes_max
    if flags & 4:
        reader.skip(_CHECKSUM_BYTES)
    return Frame(FrameStatus.WHOLE, reader.position, block_bytes_max, content_bytes, content_bytes_max, dictionary_id)
