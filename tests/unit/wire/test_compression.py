"""Every codec round trips, stops at its cap, refuses damage, and writes the bytes that Kafka's clients expect."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.errors import ErrorCode
from flowstone.wire.compression import (
    CHUNK_BYTES,
    XERIAL_BLOCK_BYTES,
    XERIAL_BLOCKS_MAX,
    XERIAL_HEADER,
    ZSTD_WINDOW_BYTES_MAX,
    Codec,
    DecompressError,
    PayloadTooLarge,
    compress,
    decompress,
)

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"streams, set in stone; " * 10_000
CAP_BYTES = 4 << 20

every_codec = pytest.mark.parametrize("codec", list(Codec))
compressing_codec = pytest.mark.parametrize("codec", COMPRESSED)


@every_codec
@given(data=st.binary(max_size=2000), repeat=st.sampled_from([1, 50]))
@settings(max_examples=40, deadline=None)
def test_what_is_compressed_comes_back(codec: Codec, data: bytes, repeat: int) -> None:
    content = data * repeat
    assert decompress(codec, compress(codec, content), CAP_BYTES) == content


@every_codec
@pytest.mark.parametrize("size", [1, XERIAL_BLOCK_BYTES, XERIAL_BLOCK_BYTES + 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_sizes_around_a_block_and_a_chunk_come_back(codec: Codec, size: int) -> None:
    content = (TEXT * (size // len(TEXT) + 1))[:size]
    assert decompress(codec, compress(codec, content), size) == content


@every_codec
def test_any_kind_of_buffer_is_taken(codec: Codec) -> None:
    for data in (bytearray(TEXT), memoryview(TEXT), memoryview(bytearray(TEXT))[:]):
        compressed = compress(codec, data)
        assert decompress(codec, compressed, len(TEXT)) == TEXT
        assert decompress(codec, memoryview(bytearray(compressed)), len(TEXT)) == TEXT
        assert decompress(codec, memoryview(compressed), len(TEXT)) == TEXT


@every_codec
def test_content_above_the_cap_is_refused(codec: Codec) -> None:
    with pytest.raises(DecompressError) as caught:
        decompress(codec, compress(codec, TEXT), len(TEXT) - 1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def bombs() -> list[object]:
    """Streams that state no size, as Java's do, so that only decoding finds out."""
    zeros = bytes(64 << 20)
    stated_no_size = zstandard.ZstdCompressor(write_content_size=False)
    return [
        pytest.param(Codec.GZIP, gzip.compress(zeros, 1), id="gzip"),
        pytest.param(Codec.SNAPPY, compress(Codec.SNAPPY, zeros), id="snappy"),
        pytest.param(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros)), id="snappy raw"),
        pytest.param(Codec.LZ4, compress(Codec.LZ4, zeros), id="lz4"),
        pytest.param(Codec.ZSTD, stated_no_size.compress(zeros), id="zstd"),
        pytest.param(Codec.ZSTD, compress(Codec.ZSTD, zeros), id="zstd with its size"),
    ]


@pytest.mark.parametrize(("codec", "bomb"), bombs())
def test_a_bomb_is_refused_before_it_takes_more_than_the_cap_and_a_chunk(codec: Codec, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecompressError):
            decompress(codec, bomb, CAP_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < CAP_BYTES * 9 / 8 + 2 * CHUNK_BYTES


@compressing_codec
def test_content_is_never_in_memory_twice(codec: Codec) -> None:
    content = Random(1).randbytes(1000) * 20_000
    compressed = compress(codec, content)
    tracemalloc.start()
    try:
        decompress(codec, compressed, len(content))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(content) * 9 / 8 + 3 * CHUNK_BYTES


@pytest.mark.measures_time
def test_gzip_takes_time_in_proportion_to_its_size() -> None:
    """Eight times as much used to take 64 times as long: what was not consumed yet was copied again and again."""

    def seconds(content: bytes) -> float:
        compressed = gzip.compress(content, 0)
        started = time.thread_time()
        decompress(Codec.GZIP, compressed, len(content))
        return time.thread_time() - started

    small, large = (min(seconds(bytes(size << 20)) for _ in range(3)) for size in (8, 64))
    assert large < 24 * small


@compressing_codec
@given(garbage=st.binary(max_size=100))
@settings(max_examples=100, deadline=None)
def test_garbage_raises_nothing_but_its_own_error(codec: Codec, garbage: bytes) -> None:
    with contextlib.suppress(DecompressError):
        decompress(codec, garbage, CAP_BYTES)


@compressing_codec
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_damage_raises_nothing_but_its_own_error(codec: Codec, position: int, byte: int) -> None:
    damaged = bytearray(compress(codec, TEXT[:5000]))
    damaged[position % len(damaged)] = byte
    with contextlib.suppress(DecompressError):
        decompress(codec, damaged, CAP_BYTES)


@compressing_codec
def test_a_stream_cut_anywhere_is_refused(codec: Codec) -> None:
    compressed = compress(codec, bytes(range(256)))
    # Before its first block a xerial stream is whole: it holds nothing.
    cuts = set(range(len(compressed))) - ({len(XERIAL_HEADER)} if codec is Codec.SNAPPY else set())
    for cut in cuts:
        with pytest.raises(DecompressError):
            decompress(codec, compressed[:cut], CAP_BYTES)


@compressing_codec
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    with pytest.raises(DecompressError):
        decompress(codec, compress(codec, TEXT) + b"\x00", CAP_BYTES)


def test_snappy_is_written_as_xerial_blocks_as_java_does() -> None:
    compressed = compress(Codec.SNAPPY, TEXT[: XERIAL_BLOCK_BYTES + 1])

    assert compressed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    length = int.from_bytes(compressed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(compressed[20 : 20 + length])) == TEXT[:XERIAL_BLOCK_BYTES]


def test_bare_snappy_as_librdkafka_writes_it_is_read() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT)) == TEXT


def test_a_xerial_stream_of_countless_tiny_blocks_is_refused() -> None:
    block = bytes(cramjam.snappy.compress_raw(b""))
    stream = XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * (XERIAL_BLOCKS_MAX + 1)

    with pytest.raises(DecompressError, match="blocks"):
        decompress(Codec.SNAPPY, stream, 100 << 20)


def test_a_xerial_stream_of_many_tiny_blocks_is_too_much_for_a_small_cap() -> None:
    """Each block costs the same, however little is in it: what is to be quick has a small cap."""
    block = bytes(cramjam.snappy.compress_raw(b"ab"))
    stream = XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * 2000
    with pytest.raises(PayloadTooLarge):
        decompress(Codec.SNAPPY, stream, 256 << 10)
    assert decompress(Codec.SNAPPY, stream, 2 << 20) == b"ab" * 2000


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))

    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert not info["content_checksum"]


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 9), (Codec.ZSTD, 19)])
def test_a_higher_level_compresses_more(codec: Codec, level: int) -> None:
    content = b"".join(b"%d;" % (number * number) for number in range(20_000))
    fast, thorough = compress(codec, content, 1), compress(codec, content, level)

    assert len(thorough) < len(fast)
    assert decompress(codec, thorough, len(content)) == content


@compressing_codec
def test_threads_do_not_disturb_each_other(codec: Codec) -> None:
    def round_trips(seed: int) -> bool:
        content = TEXT[seed:] * 3
        return all(decompress(codec, compress(codec, content), len(content)) == content for _ in range(5))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(round_trips, range(16)))


def test_codecs_have_kafkas_numbers_and_names() -> None:
    assert {codec.name.lower(): codec.value for codec in Codec} == {
        "none": 0,
        "gzip": 1,
        "snappy": 2,
        "lz4": 3,
        "zstd": 4,
    }


@compressing_codec
def test_a_second_frame_is_refused(codec: Codec) -> None:
    whole = compress(codec, TEXT[:100])
    for payload in (whole + whole, compress(codec, b"") + whole, whole + compress(codec, b"")):
        with pytest.raises(DecompressError):
            decompress(codec, payload, CAP_BYTES)


@pytest.mark.parametrize("states_size", [True, False])
def test_bytes_after_a_zstd_frame_are_refused_whether_it_states_its_size_or_not(states_size: bool) -> None:
    frame = zstandard.ZstdCompressor(write_content_size=states_size).compress(TEXT)
    assert decompress(Codec.ZSTD, frame, CAP_BYTES) == TEXT
    for more in (b"\x00", frame, b"\x50\x2a\x4d\x18\x00\x00\x00\x00"):
        with pytest.raises(DecompressError, match="after the end"):
            decompress(Codec.ZSTD, frame + more, CAP_BYTES)


def with_window(content: bytes, window_log: int) -> bytes:
    """A zstd frame as a streaming encoder writes it that does not know how much is to come."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(content) + stream.flush()


def test_a_large_zstd_window_is_taken_as_long_as_little_of_it_is_used() -> None:
    """Java's producer states 128 MiB at level 22, whatever the batch."""
    frame = with_window(TEXT, 27)
    assert zstandard.get_frame_parameters(frame).window_size == 128 << 20
    assert decompress(Codec.ZSTD, frame, 64 << 20) == TEXT


def test_more_content_than_the_limit_in_a_larger_zstd_window_is_refused() -> None:
    content = bytes(ZSTD_WINDOW_BYTES_MAX + 1)
    with pytest.raises(DecompressError, match="window"):
        decompress(Codec.ZSTD, with_window(content, 27), 64 << 20)
    assert decompress(Codec.ZSTD, with_window(content, 23), 64 << 20) == content


MEASURE_PEAK = """
import resource, sys
from flowstone.wire.compression import Codec, DecompressError, decompress
frame = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(Codec.ZSTD, frame, 100 << 20)
except DecompressError:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_a_large_zstd_window_takes_no_more_memory_than_its_limit() -> None:
    frame = with_window(bytes(99 << 20), 27)
    assert len(frame) < 16_000
    run = subprocess.run([sys.executable, "-c", MEASURE_PEAK], input=frame, capture_output=True, check=True, timeout=60)
    assert int(run.stdout) < 3 * ZSTD_WINDOW_BYTES_MAX
