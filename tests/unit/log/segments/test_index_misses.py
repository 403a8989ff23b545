"""What a worker finds of a timestamp that is far from where the index leads."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.index_misses import FAR_SEARCHES_MAX, FarSearch
from flowstone.log.segments.segment import Segment
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.wire.record_batch import PREFIX_BYTES, Record, build_batch, parse_header, prefix

TIMES = (10, 30, 20, 40)


@pytest.fixture
def segment() -> Segment:
    """Four batches of one record each."""
    files = SimulatedFiles()
    files.make_directory("/data")
    made = Segment(FileHandles(files, 4), "/data", 0, created_ms=0, index_interval_bytes=4096)
    batches = [build_batch([Record(0, time_ms, None, b"v")]) for time_ms in TIMES]
    placed = [
        prefix(at, parse_header(batch).batch_length, 0) + batch[PREFIX_BYTES:] for at, batch in enumerate(batches)
    ]
    made.log.create().write(0, placed)
    made.size_bytes = sum(map(len, placed))
    return made


def found(segment: Segment, target_ms: int, first: int = 0) -> tuple[int, int] | None:
    """Search from a batch on; return the position and size of the batch that is found."""
    size_bytes = segment.size_bytes // len(TIMES)
    FarSearch(segment, first * size_bytes, first, target_ms).warm()
    return segment.far_searches[first * size_bytes, target_ms]


def test_the_first_batch_that_is_new_enough_is_found_from_the_position_on(segment: Segment) -> None:
    size_bytes = segment.size_bytes // len(TIMES)
    assert found(segment, 10) == (0, size_bytes)
    assert found(segment, 11) == (size_bytes, size_bytes)
    assert found(segment, 11, first=2) == (2 * size_bytes, size_bytes)
    assert found(segment, 40) == (3 * size_bytes, size_bytes)
    assert found(segment, 41) is None


def test_a_damaged_batch_is_a_fault_of_the_file(segment: Segment) -> None:
    segment.log.get().write(segment.size_bytes // 2, [b"\xff" * 20])
    with pytest.raises(StorageFault, match=r"00000000000000000000\.log"):
        found(segment, 41)


def test_a_limited_number_of_results_waits_for_readers_that_may_not_come_back(segment: Segment) -> None:
    kept: Any = segment.far_searches
    for target_ms in range(FAR_SEARCHES_MAX):
        found(segment, target_ms)
    assert len(kept) == FAR_SEARCHES_MAX
    found(segment, 1000)
    assert list(kept) == [(0, 1000)]
