"""What tells an interrupted write from damage: sectors that end in zeros."""

from __future__ import annotations

import pytest

from flowstone.log.segments.torn_writes import (
    LOST_BYTES_MIN,
    LOST_HEADER_BYTES_MIN,
    SEARCH_BYTES,
    SECTOR_BYTES,
    has_missing_blocks,
)
from flowstone.ports.files import File
from flowstone.ports.simulated_files import SimulatedFiles


def file_of(data: bytes) -> File:
    files = SimulatedFiles()
    files.make_directory("/")
    file = files.open("/log", create=True)
    file.write(0, [data])
    return file


@pytest.mark.parametrize("sector", [0, 3, SEARCH_BYTES // SECTOR_BYTES])
@pytest.mark.parametrize(("zeros", "is_missing"), [(LOST_BYTES_MIN - 1, False), (LOST_BYTES_MIN, True)])
def test_a_sector_that_ends_in_zeros_was_not_written(sector: int, zeros: int, is_missing: bool) -> None:
    data = bytearray(b"x" * (SEARCH_BYTES + 2 * SECTOR_BYTES))
    end = (sector + 1) * SECTOR_BYTES
    data[end - zeros : end] = bytes(zeros)
    assert has_missing_blocks(file_of(data), 0, len(data)) is is_missing


@pytest.mark.parametrize(("zeros", "is_missing"), [(LOST_HEADER_BYTES_MIN - 1, False), (LOST_HEADER_BYTES_MIN, True)])
def test_fewer_zeros_suffice_where_a_batch_begins(zeros: int, is_missing: bool) -> None:
    data = b"x" * (SECTOR_BYTES - zeros) + bytes(zeros) + b"x" * SECTOR_BYTES
    assert has_missing_blocks(file_of(data), SECTOR_BYTES - zeros, len(data)) is is_missing
    assert not has_missing_blocks(file_of(data), SECTOR_BYTES - zeros - 1, len(data))
