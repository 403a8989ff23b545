"""Holes in a log's offsets: which are believed, and which batch is to blame for those that are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowstone.log.segments.batch_scan import HEADER_READ_BYTES, HEADERS_CHUNK_BYTES, DamagedBatch, scan
from flowstone.ports.files import File
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, encode_header, parse_header


def file_of(*offsets: int) -> File:
    """Batches of one record each."""
    files = SimulatedFiles()
    files.make_directory("/")
    file = files.open("/log", create=True)
    file.write(0, [build_batch([Record(offset, 0, b"k", b"v")], base_offset=offset) for offset in offsets])
    return file


def found(file: File, **more: int) -> list[int]:
    return [batch.header.base_offset for batch in scan(file, 0, file.size(), 0, **more)]


@pytest.mark.parametrize("offsets", [(0, 1, 2), (3,), (0, 5, 6), (0, 5, 9, 30)])
def test_offsets_may_be_missing(offsets: Sequence[int]) -> None:
    assert found(file_of(*offsets)) == list(offsets)


def test_a_batch_behind_a_hole_that_the_next_one_does_not_follow_is_the_damaged_one() -> None:
    file = file_of(0, 17, 2, 3)
    with pytest.raises(DamagedBatch, match="a batch with offset 17 is out of order") as raised:
        found(file)
    assert (raised.value.next_offset, raised.value.position) == (1, file.size() // 4)


def test_a_batch_whose_offset_falls_without_a_hole_before_it_is_the_damaged_one() -> None:
    with pytest.raises(DamagedBatch, match="a batch with offset 0 is out of order"):
        found(file_of(0, 1, 0))


def test_the_last_batch_is_not_believed_to_lie_beyond_where_holes_can_be() -> None:
    assert found(file_of(0, 7), holes_end_max=8) == [0, 7]
    with pytest.raises(DamagedBatch, match="offset 7 is out of order"):
        found(file_of(0, 7), holes_end_max=7)


def test_a_batch_behind_a_hole_comes_before_the_damage_after_it() -> None:
    file = file_of(0, 5, 6)
    size = file.size()
    file.truncate(size - 1)
    batches = scan(file, 0, size - 1, 0)
    assert [next(batches).header.base_offset, next(batches).header.base_offset] == [0, 5]
    with pytest.raises(DamagedBatch, match="beyond the file's end"):
        next(batches)


@pytest.mark.parametrize("torn_bytes", [1, HEADER_BYTES - 1])
def test_a_file_that_ends_inside_a_header_is_damaged_where_that_batch_begins(torn_bytes: int) -> None:
    file = file_of(0, 1)
    second = file.size() // 2
    file.truncate(second + torn_bytes)
    with pytest.raises(DamagedBatch, match="the file ends inside a header") as raised:
        found(file)
    assert (raised.value.next_offset, raised.value.position) == (1, second)


def test_a_file_that_ends_behind_a_header_lacks_the_batchs_records() -> None:
    file = file_of(0, 1)
    file.truncate(file.size() // 2 + HEADER_BYTES)
    with pytest.raises(DamagedBatch, match="beyond the file's end"):
        found(file)


def header_with(**changes: int) -> File:
    """A file of one batch whose header is changed so."""
    file = file_of(0)
    header = parse_header(file.read(0, file.size()))._replace(**changes)
    file.write(0, [encode_header(header, file.read(HEADER_BYTES, file.size() - HEADER_BYTES))])
    return file


@pytest.mark.parametrize("field", ["last_offset_delta", "record_count"])
def test_a_header_with_a_negative_count_is_damaged(field: str) -> None:
    assert found(header_with(**{field: 0})) == [0]
    with pytest.raises(DamagedBatch, match="negative counts"):
        found(header_with(**{field: -1}))


@pytest.mark.parametrize(("value_bytes", "reads_max"), [(10, 2), (HEADERS_CHUNK_BYTES, 20)])
def test_of_large_batches_only_the_headers_are_read_and_small_ones_many_at_a_time(
    value_bytes: int, reads_max: int
) -> None:
    file = SimulatedFiles().open("/log", create=True)
    value = b"v" * value_bytes
    file.write(0, [build_batch([Record(offset, 0, None, value)], base_offset=offset) for offset in range(20)])
    read, sizes = file.read, list[int]()

    def noted(position: int, count: int) -> bytes:
        sizes.append(count)
        return read(position, count)

    file.read = noted  # type: ignore[method-assign]
    assert found(file) == list(range(20))
    assert len(sizes) <= reads_max
    assert sum(sizes) <= 20 * HEADER_READ_BYTES + HEADERS_CHUNK_BYTES
