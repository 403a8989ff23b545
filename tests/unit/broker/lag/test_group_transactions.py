"""What `/groups`, and `flowstone group describe`, say of open transactions that concern a group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from flowstone.broker.lag.group_status import GroupStatus, read_group_document
from flowstone.cli.group.tables import NOTES_MAX, description
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.transactions import eventually

TIMEOUT_S = 20
GROUP, TOPIC = "g", "orders"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", offsets_topic_num_partitions="1") as running:
        with running.client() as client:
            assert client.create_topic(TOPIC, partitions=2) == 0
            commit(client, GROUP, TOPIC, 0)
        yield running


def group(app: RunningApp) -> GroupStatus:
    status, body = app.get(f"/groups?group={GROUP}")
    assert status == 200
    (document,) = json.loads(body)["groups"]
    return read_group_document(document)


def partition(app: RunningApp, index: int) -> Any:
    return next((each for each in group(app).partitions if each.partition == index), None)


def test_a_group_is_shown_where_transactions_hold_it_up(app: RunningApp) -> None:
    bootstrap = "{}:{}".format(*app.app.addresses["PLAINTEXT"])
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "linger.ms": 0, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"open", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = ck.Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": GROUP, "log_level": 0})
    producer.send_offsets_to_transaction(
        [ck.TopicPartition(TOPIC, 0, 1), ck.TopicPartition(TOPIC, 1, 5)], consumer.consumer_group_metadata(), TIMEOUT_S
    )
    held = partition(app, 0)
    assert (held.committed_offset, held.high_watermark, held.last_stable_offset, held.is_held_up) == (0, 1, 0, True)
    assert held.pending_offset == 1
    pending_only = partition(app, 1)
    assert (pending_only.committed_offset, pending_only.pending_offset, pending_only.is_held_up) == (None, 5, False)
    assert pending_only.pending_producer_id == held.pending_producer_id >= 0
    told = description(group(app), with_times=True)
    assert f"{TOPIC}/0: members that read committed records wait at offset 0 for an open transaction" in told
    assert f"{TOPIC}/1: offset 5 counts once the open transaction of producer {held.pending_producer_id}" in told
    producer.commit_transaction(TIMEOUT_S)
    eventually(lambda: partition(app, 0).committed_offset == 1)
    eventually(lambda: not partition(app, 0).is_held_up)
    assert partition(app, 0).pending_offset is None
    assert "transaction" not in description(group(app), with_times=True)
    consumer.close()


def test_many_notes_are_cut(app: RunningApp) -> None:
    one = partition(app, 0)._replace(pending_offset=5, pending_producer_id=7)
    many = group(app)._replace(partitions=tuple(one._replace(partition=index) for index in range(NOTES_MAX + 3)))
    told = description(many, with_times=False)
    assert told.count("counts once") == NOTES_MAX
    assert told.endswith("and 3 more notes on transactions")


def test_what_an_earlier_release_tells_is_read() -> None:
    document = {
        "group": GROUP,
        "state": "Empty",
        "protocol_type": "",
        "protocol": "",
        "generation": 1,
        "topics": [],
        "members": [],
        "rebalances": {"count": 0, "last_reason": "", "last_timestamp": -1},
        "partitions": [
            {
                "topic": TOPIC,
                "partition": 0,
                "committed_offset": 1,
                "log_start_offset": 0,
                "high_watermark": 2,
                "lag": 1,
                "lost": 0,
                "lag_seconds": 1.0,
                "headroom_seconds": None,
                "headroom_low": False,
                "member": None,
            }
        ],
    }
    (read,) = read_group_document(document).partitions
    assert (read.last_stable_offset, read.pending_offset, read.is_held_up) == (None, None, False)
