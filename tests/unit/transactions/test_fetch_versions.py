"""Fetch, ListOffsets and OffsetFetch in every version, of a partition with an aborted and an open transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.transactions import TransactionClient
from tests.support.wire_client import Client
from tests.unit.transactions.states import GROUP, SETTINGS, TOPIC, commit_offset, prepare

ABORTED, OPEN = 7001, 7002
STABLE, END = 3, 5
FETCH, LIST_OFFSETS, OFFSET_FETCH = 1, 2, 9
FIRST_WITH_TOPIC_IDS = 13
NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    data = str(tmp_path_factory.mktemp("broker"))
    with RunningApp(data, idle_poll_us="0", **SETTINGS) as app, app.client() as connected:
        prepare(connected)
        topic = TransactionalTopic(app, TOPIC)
        topic.write_plain(b"plain")
        topic.write(ABORTED, b"aborted")
        topic.end(ABORTED, commits=False)
        topic.write(OPEN, b"open")
        topic.write_plain(b"after")
        producer = TransactionClient(connected)
        producer.begin()
        assert commit_offset(producer, 5) == NONE
        yield connected


def versions_of(key: int, first: int = 0) -> range:
    endpoint = ENDPOINTS[key]
    return range(max(first, endpoint.min_version), endpoint.max_version + 1)


def fetch(client: Client, version: int, isolation_level: int) -> Any:
    described = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TOPIC)])).topics[0]
    partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    names = {"topic_id": described.topic_id} if version >= FIRST_WITH_TOPIC_IDS else {"topic": TOPIC}
    request = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation_level,
        session_epoch=-1,
        topics=[m.FetchRequestTopic(partitions=[partition], **names)],
    )
    return client.ask(version, request).responses[0].partitions[0]


@pytest.mark.parametrize("version", versions_of(FETCH))
def test_every_version_of_fetch_has_the_stable_offset_and_the_aborted_transactions(
    client: Client, version: int
) -> None:
    committed, uncommitted = fetch(client, version, 1), fetch(client, version, 0)
    assert (committed.error_code, uncommitted.error_code) == (NONE, NONE)
    assert (committed.last_stable_offset, committed.high_watermark) == (STABLE, END)
    assert [(each.producer_id, each.first_offset) for each in committed.aborted_transactions] == [(ABORTED, 1)]
    assert (uncommitted.last_stable_offset, uncommitted.aborted_transactions) == (STABLE, None)
    assert 0 < len(committed.records) < len(uncommitted.records)


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS, first=2))
def test_every_version_of_list_offsets_knows_the_isolation_level(client: Client, version: int) -> None:
    def latest(isolation_level: int) -> int:
        partition = m.ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
        wanted = m.ListOffsetsRequestTopic(name=TOPIC, partitions=[partition])
        request = m.ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[wanted])
        found = client.ask(version, request).topics[0].partitions[0]
        assert found.error_code == NONE
        return int(found.offset)

    assert (latest(0), latest(1)) == (END, STABLE)


@pytest.mark.parametrize("version", versions_of(OFFSET_FETCH, first=7))
def test_every_version_of_offset_fetch_that_can_tells_pending_offsets(client: Client, version: int) -> None:
    described = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TOPIC)])).topics[0]
    if version < 8:
        wanted = [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
        answer = client.ask(version, m.OffsetFetchRequest(group_id=GROUP, topics=wanted, require_stable=True))
    else:
        names = {"topic_id": described.topic_id} if version >= 10 else {"name": TOPIC}
        many = [m.OffsetFetchRequestTopics(partition_indexes=[0], **names)]
        groups = [m.OffsetFetchRequestGroup(group_id=GROUP, topics=many)]
        (answer,) = client.ask(version, m.OffsetFetchRequest(groups=groups, require_stable=True)).groups
    (found,) = answer.topics[0].partitions
    assert (found.error_code, found.committed_offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
