"""Where compressed frames end, asked of both forms; then the two held equal over damaged frames."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.kernel import frames_twin as twin
from flowstone.kernel.frames import FrameStatus

try:
    from flowstone.kernel import frames_native as native
except ImportError:
    FORMS: list[ModuleType] = [twin]
else:
    FORMS = [twin, native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

CONTENT = bytes(range(256)) * 900
SKIPPABLE = b"\x5f\x2a\x4d\x18\x04\x00\x00\x00abcd"
DICTIONARY = zstandard.train_dictionary(4096, [b"sample %d of many that look alike" % number for number in range(500)])


def zstd(content: bytes = CONTENT, level: int = 3, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=level, **options).compress(content)


def lz4_frame(content: bytes = CONTENT, **options: int) -> bytes:
    frame: bytes = lz4.frame.compress(content, **options)
    return frame


ZSTD = [
    zstd(),
    zstd(b""),
    zstd(b"a"),
    zstd(bytes(300), write_content_size=False),
    zstd(write_content_size=False),
    zstd(write_checksum=True),
    zstd(bytes(1_000_000), write_checksum=True, write_content_size=False),
]
LZ4 = [
    lz4_frame(),
    lz4_frame(b""),
    lz4_frame(content_checksum=True),
    lz4_frame(block_checksum=True, block_size=lz4.frame.BLOCKSIZE_MAX1MB),
    lz4_frame(bytes(range(256)), store_size=False),
]


@every_form
@pytest.mark.parametrize("frame", ZSTD)
def test_a_zstd_frame_is_as_long_as_it_is(form: ModuleType, frame: bytes) -> None:
    found = form.scan_zstd_frame(frame + b"more")
    parameters = zstandard.get_frame_parameters(frame)
    assert (found.status, found.frame_bytes) == (FrameStatus.WHOLE, len(frame))
    assert found.dictionary_id == 0
    content = zstandard.ZstdDecompressor().decompress(frame, max_output_size=2_000_000)
    assert found.content_bytes in (-1, len(content))
    assert len(content) <= found.content_bytes_max <= len(content) + (128 << 10)
    assert found.window_bytes == parameters.window_size or not content


@every_form
@pytest.mark.parametrize("frame", LZ4)
def test_an_lz4_frame_is_as_long_as_it_is(form: ModuleType, frame: bytes) -> None:
    found = form.scan_lz4_frame(frame + b"more")
    info = lz4.frame.get_frame_info(frame)
    assert (found.status, found.frame_bytes) == (FrameStatus.WHOLE, len(frame))
    assert found.window_bytes == info["block_size"]
    assert found.content_bytes in (-1, info["content_size"])
    assert found.content_bytes_max >= len(lz4.frame.decompress(frame))


@every_form
def test_a_dictionary_is_named(form: ModuleType) -> None:
    frame = zstandard.ZstdCompressor(dict_data=DICTIONARY).compress(CONTENT)
    assert form.scan_zstd_frame(frame).dictionary_id == DICTIONARY.dict_id()


@every_form
def test_what_is_no_frame_is_told_apart(form: ModuleType) -> None:
    for scan, magic in ((form.scan_zstd_frame, zstd()[:4]), (form.scan_lz4_frame, lz4_frame()[:4])):
        assert scan(SKIPPABLE).status is FrameStatus.SKIPPABLE
        assert scan(b"nonsense").status is FrameStatus.NO_MAGIC
        assert scan(b"").status is FrameStatus.TRUNCATED
        assert scan(magic + b"\xff" * 20).status is FrameStatus.RESERVED_BITS


@every_form
def test_a_frame_cut_anywhere_is_truncated(form: ModuleType) -> None:
    for scan, frame in ((form.scan_zstd_frame, zstd(CONTENT[:500])), (form.scan_lz4_frame, lz4_frame(CONTENT[:500]))):
        assert {scan(frame[:end]).status for end in range(len(frame))} == {FrameStatus.TRUNCATED}


@every_form
def test_a_block_that_cannot_be_is_told(form: ModuleType) -> None:
    reserved_kind = zstd(CONTENT)[:4] + b"\x00\x58" + b"\x06\x00\x00"
    assert form.scan_zstd_frame(reserved_kind).status is FrameStatus.BAD_BLOCK
    too_large = lz4_frame(b"", store_size=False)[:7] + (65537).to_bytes(4, "little")
    assert form.scan_lz4_frame(too_large).status is FrameStatus.BAD_BLOCK


@needs_native
@given(
    frame=st.sampled_from([*ZSTD, *LZ4]),
    changes=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 50),
)
@settings(max_examples=2000, deadline=None)
def test_both_forms_say_the_same_of_damaged_frames(frame: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    damaged = bytearray(frame[: len(frame) - cut])
    for position, byte in changes:
        if position < len(damaged):
            damaged[position] = byte
    for name in ("scan_zstd_frame", "scan_lz4_frame"):
        expected = getattr(twin, name)(damaged)
        for buffer in (damaged, bytes(damaged), memoryview(bytes(damaged))):
            assert getattr(native, name)(buffer) == expected


@needs_native
def test_nothing_is_read_beyond_the_end() -> None:
    program = Path(__file__).with_name("guard_page_frames.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=120)
