"""When a session's partition has nothing to report: each fact that a client was not told is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowstone.broker.fetching.fetch_partitions import (
    NOT_TOLD,
    CommittedFetchPartition,
    FetchPartition,
    ReplicaFetchPartition,
)
from flowstone.errors import StorageFault
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.messages import FetchRequestPartition, FetchRequestTopic
from tests.support.partitions import ON_DISK, a_batch, a_partition, flush

EPOCH = 3  # of the partition's leader


def committed(count: int = 4) -> Partition:
    partition, _ = a_partition(ON_DISK)
    partition.append(a_batch(count), 1)
    flush(partition)
    return partition


def wanted(offset: int = 4, **more: Any) -> FetchRequestPartition:
    fields = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 700, "current_leader_epoch": EPOCH}
    return FetchRequestPartition(**fields | more)  # type: ignore[arg-type]


TOPIC = FetchRequestTopic(topic="t", topic_id=bytes(range(16)))


def told(kind: type[FetchPartition], request: FetchRequestPartition | None = None) -> Any:
    """A partition whose client was told that four records are committed and the log begins at 0."""
    made: Any = kind(TOPIC, request or wanted())
    made.told_high_watermark = made.told_last_stable_offset = 4
    made.told_log_start_offset = 0
    if isinstance(made, ReplicaFetchPartition):
        made.is_position_told = True
    return made


KINDS = [FetchPartition, CommittedFetchPartition, ReplicaFetchPartition]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_was_told_everything_knows_all(kind: type[FetchPartition]) -> None:
    assert told(kind).knows_all_of(committed())


def append(partition: Partition) -> None:
    partition.append(a_batch(), 1)
    flush(partition)


def begin_later(partition: Partition) -> None:
    partition.log.advance_log_start(2)


def fail(partition: Partition) -> None:
    partition.local.fail(StorageFault("the disk is gone"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [append, begin_later, fail])
def test_what_changes_in_the_partition_is_to_be_told(
    kind: type[FetchPartition], change: Callable[[Partition], None]
) -> None:
    partition = committed()
    change(partition)
    assert not told(kind).knows_all_of(partition)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("offset", [3, 5])
def test_a_client_that_is_elsewhere_does_not_know_all(kind: type[FetchPartition], offset: int) -> None:
    assert not told(kind, wanted(offset)).knows_all_of(committed())


@pytest.mark.parametrize(("epoch", "kinds"), [(-1, KINDS[:2]), (EPOCH - 1, []), (EPOCH + 1, [])])
def test_a_client_that_knows_another_leader_is_answered(epoch: int, kinds: list[type[FetchPartition]]) -> None:
    request = wanted(current_leader_epoch=epoch)
    assert [kind for kind in KINDS if told(kind, request).knows_all_of(committed())] == kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_was_told_nothing_yet_is_answered(kind: type[FetchPartition]) -> None:
    made = kind(TOPIC, wanted())
    facts = (made.told_high_watermark, made.told_last_stable_offset, made.told_log_start_offset)
    assert facts == (NOT_TOLD, NOT_TOLD, NOT_TOLD)
    assert not made.knows_all_of(committed())


def test_consumers_are_told_of_the_end_that_they_may_read_to() -> None:
    uncommitted, read_committed = told(FetchPartition), told(CommittedFetchPartition)
    uncommitted.told_last_stable_offset = read_committed.told_high_watermark = 0
    partition = committed()
    assert uncommitted.knows_all_of(partition)
    assert read_committed.knows_all_of(partition)
    uncommitted.told_high_watermark = read_committed.told_last_stable_offset = 3
    assert not uncommitted.knows_all_of(partition)
    assert not read_committed.knows_all_of(partition)


def test_a_follower_is_answered_until_its_position_is_told_and_after_it_names_the_partition_again() -> None:
    partition = committed()
    follower = told(ReplicaFetchPartition)
    follower.is_position_told = False
    assert not follower.knows_all_of(partition)
    follower = told(ReplicaFetchPartition)
    follower.told_high_watermark = 3
    assert not follower.knows_all_of(partition)
    follower = told(ReplicaFetchPartition)
    follower.update(wanted(log_start_offset=2))
    assert (follower.log_start_offset, follower.is_position_told) == (2, False)
    follower.is_position_told = True
    assert not follower.knows_all_of(partition)  # it may not have taken the last answer
    follower.told_last_stable_offset = 4
    assert follower.knows_all_of(partition)


def test_a_request_names_what_is_wanted() -> None:
    made = FetchPartition(TOPIC, wanted(last_fetched_epoch=2))
    assert (made.topic, made.topic_id, made.index) == ("t", TOPIC.topic_id, 0)
    assert (made.fetch_offset, made.max_bytes, made.current_leader_epoch, made.last_fetched_epoch) == (4, 700, EPOCH, 2)
    made.update(wanted(9, partition_max_bytes=8, current_leader_epoch=7, last_fetched_epoch=6))
    assert (made.fetch_offset, made.max_bytes, made.current_leader_epoch, made.last_fetched_epoch) == (9, 8, 7, 6)


class Session:
    """A session that notes what its partitions tell it."""

    def __init__(self, *, hurries_high_watermarks: bool = False) -> None:
        self.hurries_high_watermarks = hurries_high_watermarks
        self.heard: list[tuple[str, int]] = []

    def advanced(self, wanted: FetchPartition, size_bytes: int) -> None:
        self.heard.append(("advanced", size_bytes))

    def interrupted(self, wanted: FetchPartition) -> None:
        self.heard.append(("interrupted", 0))

    def unsettled(self, wanted: FetchPartition) -> None:
        self.heard.append(("unsettled", 0))


@pytest.mark.parametrize(
    ("kind", "reader"),
    [(FetchPartition, Reader.UNCOMMITTED), (CommittedFetchPartition, Reader.COMMITTED)],
)
def test_a_session_hears_of_the_end_that_its_client_reads_to_until_it_ends(
    kind: type[FetchPartition], reader: Reader
) -> None:
    partition, session = committed(), Session()
    made, any_session = kind(TOPIC, wanted()), session
    made.unwatch()  # nothing was watched yet
    made.watch(partition, any_session)  # type: ignore[arg-type]
    partition.local.watchers(reader).advanced(10)
    partition.local.watchers(reader).interrupted()
    made.unwatch()
    partition.local.watchers(reader).advanced(10)
    assert session.heard == [("advanced", 10), ("interrupted", 0)]


@pytest.mark.parametrize("hurries", [True, False])
def test_a_followers_session_hears_of_the_logs_end_and_of_high_watermarks_as_it_wants(hurries: bool) -> None:
    partition, session = committed(), Session(hurries_high_watermarks=hurries)
    made = ReplicaFetchPartition(TOPIC, wanted())
    made.watch(partition, session)  # type: ignore[arg-type]
    partition.local.watchers(Reader.REPLICA).advanced(10)
    partition.local.watchers(Reader.UNCOMMITTED).advanced(10)
    partition.local.watchers(Reader.UNCOMMITTED).interrupted()
    moved = "interrupted" if hurries else "unsettled"
    assert session.heard == [("advanced", 10), (moved, 0), ("unsettled", 0)]
    made.unwatch()
    for reader in (Reader.REPLICA, Reader.UNCOMMITTED):
        assert len(partition.local.watchers(reader)) == 0
