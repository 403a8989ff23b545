"""The files of a future replica."""

from __future__ import annotations

import pytest

from flowstone.log.directories import future_replica
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition

SEGMENT = "00000000000000000000.log"


def files_with(**contents: bytes) -> SimulatedFiles:
    files = SimulatedFiles()
    for folder in ("/a", "/b", "/a/t-0", "/b/future"):
        files.make_directory(folder)
    for name, data in contents.items():
        files.open(f"/a/t-0/{name.replace('_', '.')}", create=True).write(0, [data])
    return files


def test_a_future_replica_is_recognized_by_its_name_and_a_long_topic_has_none() -> None:
    files = files_with()
    directory = LogDirectory(files, "/b")
    path = future_replica.future_path(directory, TopicPartition("a.b-c", 7))
    assert path is not None
    files.make_directory(path)
    assert future_replica.unfinished(directory) == {path: TopicPartition("a.b-c", 7)}
    assert directory.partitions() == []
    assert future_replica.future_path(directory, TopicPartition("l" * 230, 0)) is None


def test_completing_copies_what_is_missing_and_removes_what_the_source_has_not() -> None:
    files = files_with()
    source, future = "/a/t-0", "/b/future"
    files.open(f"{source}/{SEGMENT}", create=True).write(0, [b"0123456789"])
    files.open(f"{source}/00000000000000000000.index", create=True).write(0, [b"12345678"])
    files.open(f"{source}/x.deleted", create=True)
    future_replica.copy_part(files, source, future, 0, 0, 4)
    files.open(f"{future}/00000000000000000009.log", create=True)
    found = future_replica.complete(files, source, future, {0: 4}, {0: 8}, "id-of-a")
    assert found == {0: future_replica.SegmentFiles(8, 8, None, None)}
    files.lose_power()
    assert files.names("/b/future") == ["00000000000000000000.index", SEGMENT, "moved-from"]
    assert files.read(f"{future}/{SEGMENT}") == b"01234567"
    assert files.read(f"{future}/moved-from") == b"id-of-a\n"


def test_a_segment_that_lost_its_end_meanwhile_is_not_copied() -> None:
    files = files_with()
    files.open(f"/a/t-0/{SEGMENT}", create=True).write(0, [b"0123"])
    with pytest.raises(FileNotFoundError):
        future_replica.copy_part(files, "/a/t-0", "/b/future", 0, 0, 5)


def test_the_mark_is_removed_for_good() -> None:
    files = files_with()
    files.replace("/b/future/moved-from", b"x")
    assert future_replica.is_marked(files, "/b/future")
    future_replica.remove_mark(files, "/b/future")
    files.lose_power()
    assert not future_replica.is_marked(files, "/b/future")


def test_a_name_may_be_as_long_as_a_file_systems() -> None:
    directory = LogDirectory(files_with(), "/b")
    longest = 255 - len(f"-0.{'0' * 32}-future")
    path = future_replica.future_path(directory, TopicPartition("l" * longest, 0))
    assert path is not None
    assert len(path) == len("/b/") + 255
    assert future_replica.future_path(directory, TopicPartition("l" * (longest + 1), 0)) is None


@pytest.mark.parametrize("size_bytes", [1, future_replica.COPY_BYTES, future_replica.COPY_BYTES + 1])
def test_a_part_is_copied_to_its_place_durably(size_bytes: int) -> None:
    files = files_with()
    data = bytes(range(251)) * (size_bytes // 251 + 1)
    files.open(f"/a/t-0/{SEGMENT}", create=True).write(0, [data])
    files.open(f"/b/future/{SEGMENT}", create=True).write(0, [b"x" * (size_bytes + 9)])
    future_replica.copy_part(files, "/a/t-0", "/b/future", 0, 0, size_bytes)
    assert files.read(f"/b/future/{SEGMENT}") == data[:size_bytes]
    files.sync_directory("/b/future")
    future_replica.copy_part(files, "/a/t-0", "/b/future", 0, size_bytes, len(data))
    assert files.read(f"/b/future/{SEGMENT}") == data
    files.lose_power()
    assert files.read(f"/b/future/{SEGMENT}") == data


def test_the_indexes_of_a_segment_are_copied_and_named_and_no_others() -> None:
    files = files_with()
    for name, data in (("0.index", b"12345678"), ("0.txnindex", b""), ("9.index", b"12345678")):
        number, _, suffix = name.partition(".")
        files.open(f"/a/t-0/{int(number):020d}.{suffix}", create=True).write(0, [data])
    names = future_replica.copy_indexes(files, "/a/t-0", "/b/future", 0)
    assert names == ["00000000000000000000.index", "00000000000000000000.txnindex"]
    assert files.names("/b/future") == names
    future_replica.remove_segment(files, "/b/future", 9)
    assert files.names("/b/future") == names
