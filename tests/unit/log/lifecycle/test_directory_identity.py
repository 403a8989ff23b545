"""A log directory itself: who may use it, what its files say, and the names of what a start must not open."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from flowstone.errors import StartupError, StorageFault
from flowstone.log.lifecycle.directory_identity import (
    CLEAN_SHUTDOWN_MARKER,
    CLEAN_STATE,
    DELETE_SUFFIX,
    FILE_NAME_BYTES_MAX,
    META_PROPERTIES,
    STAGED_SUFFIX,
    STRAY_SUFFIX,
    Identity,
    LogDirectory,
    TimeCheckpoint,
    new_directory_id,
)
from flowstone.log.segments.checkpoints import LOG_START_CHECKPOINT
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition

IDENTITY = Identity("cluster", 7, "directory", ("directory", "other"))


@pytest.fixture
def directory() -> LogDirectory:
    made = LogDirectory(SimulatedFiles(), "/data")
    made.format(IDENTITY)
    return made


def write(directory: LogDirectory, name: str, data: bytes) -> None:
    directory.files.replace(directory.file(name), data)


def reopened(directory: LogDirectory) -> LogDirectory:
    directory.close()
    again = LogDirectory(directory.files, directory.path)
    again.open()
    return again


def test_an_identity_is_found_again(directory: LogDirectory) -> None:
    assert directory.identity == IDENTITY
    assert reopened(directory).identity == IDENTITY


def test_a_directory_that_does_not_exist_is_new_and_nothing_is_created() -> None:
    files = SimulatedFiles()
    made = LogDirectory(files, "/data")
    made.open()
    assert made.identity is None
    assert not files.exists("/data")


def test_one_process_at_a_time_has_a_directory(directory: LogDirectory) -> None:
    other = LogDirectory(directory.files, "/data")
    with pytest.raises(StartupError, match="/data is in use by another process"):
        other.open()
    directory.close()
    directory.close()
    other.open()
    with pytest.raises(StartupError):
        directory.format(IDENTITY)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("version=1\ncluster.id=c\nnode.id=7\n", Identity("c", 7, "")),
        ("# node.id=8\n version=1 \ncluster.id=c=d\nnode.id=7\ndirectory.id=x\n", Identity("c=d", 7, "x")),
        ("version=1\ncluster.id=c\nnode.id=7\nflowstone.known.directory.ids=a,,b\n", Identity("c", 7, "", ("a", "b"))),
        ("version=1\nno field\ncluster.id=c\nnode.id=7\n", Identity("c", 7, "")),
        ("version=0\ncluster.id=c\nnode.id=7\n", None),
        ("version=1\nnode.id=7\n", None),
        ("version=1\ncluster.id=c\nnode.id=seven\n", None),
        ("cluster.id=c\nnode.id=7\n", None),
        ("", None),
    ],
)
def test_the_identity_is_kafkas_file_of_properties(directory: LogDirectory, text: str, found: Identity | None) -> None:
    write(directory, META_PROPERTIES, text.encode())
    if found is not None:
        assert reopened(directory).identity == found
        return
    with pytest.raises(StorageFault, match=f"/data/{META_PROPERTIES} is damaged"):
        reopened(directory)
    write(directory, META_PROPERTIES, b"version=1\ncluster.id=c\nnode.id=7\n")
    assert reopened(directory).identity is not None  # the lock was given back


def test_other_directories_are_named_only_if_there_are_any(directory: LogDirectory) -> None:
    assert directory.files.read(directory.file(META_PROPERTIES)).decode().splitlines() == [
        "version=1",
        "cluster.id=cluster",
        "node.id=7",
        "directory.id=directory",
        "flowstone.known.directory.ids=directory,other",
    ]
    directory.format(IDENTITY._replace(known_ids=("directory",)))
    assert b"known" not in directory.files.read(directory.file(META_PROPERTIES))


class FailingFiles(SimulatedFiles):
    fails = False

    def check(self, operation: str) -> None:
        if self.fails and operation != "lock":
            raise OSError(errno.EIO, "the disk has failed", "/data/x")
        super().check(operation)


def test_a_disk_that_fails_is_a_fault_of_the_directory_and_its_lock_is_given_back() -> None:
    files: Any = FailingFiles()
    made = LogDirectory(files, "/data")
    made.format(IDENTITY)
    made.close()
    files.fails = True
    for use in (lambda: made.format(IDENTITY), made.open):
        with pytest.raises(StorageFault, match="/data cannot be used: the disk has failed: /data/x"):
            use()
    files.fails = False
    LogDirectory(files, "/data").open()


# Partitions


def test_partitions_are_directories_with_a_name_and_a_number(directory: LogDirectory) -> None:
    for name in ("t-0", "a.b_c-d-12", "t-1.x-delete", "t-", "-3", "t-2.y-staged"):
        directory.files.make_directory(f"/data/{name}")
    write(directory, "file-3", b"")
    assert sorted(directory.partitions()) == [TopicPartition("a.b_c-d", 12), TopicPartition("t", 0)]
    assert sorted(directory.condemned()) == ["/data/t-1.x-delete", "/data/t-2.y-staged"]
    assert directory.condemned_partitions() == {"t-1"}


@pytest.mark.parametrize("topic", ["t", "t" * 249])
def test_a_condemned_partition_is_known_by_its_name_and_not_opened_again(directory: LogDirectory, topic: str) -> None:
    partition = TopicPartition(topic, 3)
    directory.files.make_directory(f"/data/{partition}")
    assert directory.partitions() == [partition]
    target = directory.condemn(f"/data/{partition}")
    assert directory.condemned() == [target]
    assert directory.partitions() == []
    assert target.endswith(DELETE_SUFFIX)
    assert len(target.rpartition("/")[2]) <= FILE_NAME_BYTES_MAX
    assert directory.condemned_name(partition) in directory.condemned_partitions()
    assert directory.condemned_name(TopicPartition("u", 3)) not in directory.condemned_partitions()


def test_a_directory_that_was_set_aside_is_neither_opened_nor_removed(directory: LogDirectory) -> None:
    directory.files.make_directory("/data/t-0")
    target = directory.set_aside("/data/t-0")
    assert target.startswith("/data/t-0.")
    assert target.endswith(STRAY_SUFFIX)
    assert (directory.partitions(), directory.condemned()) == ([], [])
    assert directory.files.is_directory(target)


def test_what_is_staged_has_another_name_each_time_and_is_removed_by_the_next_start(directory: LogDirectory) -> None:
    first, second = (directory.staged_name("/elsewhere/t-0") for _ in range(2))
    assert first != second
    assert first.startswith("/data/t-0.")
    assert first.endswith(STAGED_SUFFIX)
    longest = directory.staged_name("/data/" + "x" * 300).rpartition("/")[2]
    assert len(longest) == FILE_NAME_BYTES_MAX


# Checkpoints


def test_offsets_are_found_again_and_a_missing_or_damaged_file_has_none(
    directory: LogDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.read_offsets(LOG_START_CHECKPOINT) == {}
    assert caplog.records == []
    offsets = {TopicPartition("t", 0): 5, TopicPartition("u", 3): 2**40}
    directory.write_offsets(LOG_START_CHECKPOINT, offsets)
    assert directory.read_offsets(LOG_START_CHECKPOINT) == offsets
    write(directory, LOG_START_CHECKPOINT, b"rubbish")
    assert directory.read_offsets(LOG_START_CHECKPOINT) == {}
    assert "is damaged and will be rewritten" in caplog.text


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_the_time_of_the_last_checkpoint_is_found_again(directory: LogDirectory, is_confirmed: bool) -> None:
    assert directory.read_time() is None
    directory.write_time(TimeCheckpoint(1_700_000_000_123, is_confirmed))
    assert directory.read_time() == TimeCheckpoint(1_700_000_000_123, is_confirmed)


@pytest.mark.parametrize("data", [b"", b"yesterday", b"12x unconfirmed"])
def test_a_damaged_time_is_not_known(directory: LogDirectory, data: bytes) -> None:
    directory.write_time(TimeCheckpoint(1, is_confirmed=True))
    (name,) = (each for each in directory.files.names("/data") if directory.files.read(f"/data/{each}") == b"1")
    write(directory, name, data)
    assert directory.read_time() is None


def test_a_clean_stop_is_known_until_its_marker_is_removed_with_what_it_left(directory: LogDirectory) -> None:
    assert not directory.take_clean_marker()
    assert directory.read_clean_state() == b""
    directory.write_clean_state(b"state")
    directory.write_clean_marker()
    assert directory.files.read(directory.file(CLEAN_SHUTDOWN_MARKER)) == b'{"version":0,"brokerEpoch":-1}'
    assert directory.take_clean_marker()
    assert directory.take_clean_marker()  # it stays
    assert directory.read_clean_state() == b"state"
    directory.remove_clean_marker()
    assert not directory.take_clean_marker()
    assert not directory.files.exists(directory.file(CLEAN_STATE))
    directory.remove_clean_marker()


def test_a_removed_marker_does_not_come_back_after_a_power_loss(directory: LogDirectory) -> None:
    directory.write_clean_marker()
    directory.remove_clean_marker()
    files: Any = directory.files
    files.lose_power()
    assert not directory.take_clean_marker()


def test_no_id_of_a_directory_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter(["-abc", "-", "abc-"])
    monkeypatch.setattr("flowstone.log.lifecycle.directory_identity.format_uuid", lambda _: next(texts))
    assert new_directory_id() == "abc-"
