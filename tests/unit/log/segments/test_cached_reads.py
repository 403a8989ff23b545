"""Bytes that only the disk has are brought into the page cache bit by bit: others want the disk too."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.log.segments.cached_reads import COLD_PIECE_BYTES, bring_in
from flowstone.ports.simulated_files import SimulatedFile, SimulatedFiles
from flowstone.ports.system_files import SystemFiles


class CountingFile(SimulatedFile):
    def __init__(self, files: SimulatedFiles, file: SimulatedFile) -> None:
        super().__init__(files, file.path, file._node)
        self.reads: list[tuple[int, int]] = []

    def read(self, position: int, count: int) -> bytes:
        self.reads.append((position, count))
        return super().read(position, count)


@pytest.fixture
def counting() -> CountingFile:
    files = SimulatedFiles()
    return CountingFile(files, files.open("/log", create=True))


def test_much_is_read_in_small_pieces_that_leave_nothing_out(counting: CountingFile) -> None:
    bring_in(counting, 100, 2 * COLD_PIECE_BYTES + 1)
    assert counting.reads == [
        (100, COLD_PIECE_BYTES),
        (100 + COLD_PIECE_BYTES, COLD_PIECE_BYTES),
        (100 + 2 * COLD_PIECE_BYTES, 1),
    ]


def test_little_is_read_at_once(counting: CountingFile) -> None:
    bring_in(counting, 7, 50)
    assert counting.reads == [(7, 50)]


def test_what_was_brought_in_is_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(2 * COLD_PIECE_BYTES))
    file = SystemFiles().open(str(path))
    bring_in(file, 0, 2 * COLD_PIECE_BYTES)
    assert file.is_cached(0, 2 * COLD_PIECE_BYTES)
    file.close()


def test_a_disk_that_fails_is_heard_of(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x")
    file = SystemFiles().open(str(tmp_path / "log"))
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        bring_in(file, 0, 1)
