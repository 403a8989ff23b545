"""A file that a branch and its source share is copied before one of them changes it."""

from __future__ import annotations

import pytest

from flowstone.log.segments.shared_files import TEMPORARY_SUFFIX, own_file
from flowstone.ports.simulated_files import SimulatedFiles

SOURCE, BRANCH = "/data/source.log", "/data/branch.log"


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_directory("/data")
    file = made.open(SOURCE, create=True)
    file.write(0, [b"0123456789"])
    file.sync()
    made.sync_directory("/data")
    return made


def test_a_file_with_one_name_is_changed_in_place(files: SimulatedFiles) -> None:
    assert not own_file(files, SOURCE, 10)
    assert files.names("/data") == ["source.log"]


def test_a_shared_file_is_replaced_by_a_copy_of_its_first_bytes_that_is_durable(files: SimulatedFiles) -> None:
    files.link(SOURCE, BRANCH)
    assert own_file(files, BRANCH, 4)
    files.sync_directory("/data")
    files.lose_power()
    assert files.read(BRANCH) == b"0123"
    assert files.read(SOURCE) == b"0123456789"
    files.open(BRANCH).write(0, [b"x"])
    assert files.read(SOURCE) == b"0123456789"
    assert not any(name.endswith(TEMPORARY_SUFFIX) for name in files.names("/data"))
    assert not own_file(files, SOURCE, 10)
    assert not own_file(files, BRANCH, 4)
