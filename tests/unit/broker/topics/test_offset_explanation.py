"""What the broker says of one offset."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.topics.branching import BranchRequest, TopicBranches
from flowstone.broker.topics.offset_explanation import Explaining
from flowstone.replication.partition import ACKS_ALL
from flowstone.wire.compression import Codec
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import COORDINATOR_EPOCH, TransactionalTopic
from tests.support.wire_client import Client, batch_of

TOPIC = "orders"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", offsets_topic_num_partitions="2") as running:
        yield running


@pytest.fixture
def client(broker: RunningApp) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def ask(broker: RunningApp, offset: object, *, topic: str = TOPIC, partition: object = 0) -> tuple[int, Any]:
    status, body = broker.get(f"/explain?topic={topic}&partition={partition}&offset={offset}")
    return status, json.loads(body)


def explain(broker: RunningApp, offset: int, topic: str = TOPIC) -> Any:
    status, told = ask(broker, offset, topic=topic)
    assert status == 200
    return told


def now_ms() -> int:
    return int(time.time() * 1000)


def test_it_says_where_the_record_lies(broker: RunningApp, client: Client, tmp_path: Path) -> None:
    client.create_topic(TOPIC)
    first = batch_of(b"a", b"b")
    client.produce(TOPIC, first)
    client.produce(TOPIC, batch_of(b"c", b"d", b"e"))
    told = explain(broker, 3)
    assert told["segment"] == {
        "file": str(tmp_path / "orders-0" / "00000000000000000000.log"),
        "base_offset": 0,
        "size_bytes": told["segment"]["size_bytes"],
        "position": len(first),
        "is_active": True,
    }
    assert (told["batch"]["base_offset"], told["batch"]["last_offset"], told["batch"]["record_count"]) == (2, 4, 3)


def test_it_says_the_time_and_the_compression_of_the_very_record(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    start = now_ms()
    records = [Record(i, start - 1000 * i, None, b"v") for i in range(3)]
    client.produce(TOPIC, build_batch(records, codec=Codec.ZSTD))
    told = explain(broker, 2)
    assert (told["timestamp_ms"], told["timestamp_type"]) == (start - 2000, "CreateTime")
    assert told["batch"]["compression"] == "zstd"


def test_it_says_who_wrote_it(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=40))
    assert explain(broker, 1)["producer"] == {"producer_id": 7, "producer_epoch": 2, "sequence": 41}


def test_a_producer_without_an_id_is_none(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a"))
    assert explain(broker, 0)["producer"] is None


def test_it_says_that_an_acknowledged_record_is_on_disk_and_committed(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a"))
    told = explain(broker, 0)["durability"]
    assert told["is_flushed"]
    assert told["is_committed"]
    assert told["replicas"] == told["in_sync_replicas"]


def test_it_tells_groups_that_have_passed_it_from_those_that_have_not(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a", b"b"))
    commit(client, "ahead", TOPIC, 2)
    commit(client, "behind", TOPIC, 1)
    assert explain(broker, 1)["groups"] == [
        {"group": "ahead", "committed_offset": 2, "has_passed": True},
        {"group": "behind", "committed_offset": 1, "has_passed": False},
    ]


def test_it_says_when_retention_takes_it(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, **{"retention.ms": "3600000"})
    client.produce(TOPIC, batch_of(b"a"))
    told = explain(broker, 0)["retention"]
    assert told["deleted_at_ms"] == pytest.approx(now_ms() + 3_600_000, abs=20_000)


def test_where_nothing_deletes_it_there_is_no_such_time(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, **{"retention.ms": "-1"})
    client.produce(TOPIC, batch_of(b"a"))
    told = explain(broker, 0)
    assert told["retention"]["deleted_at_ms"] is None
    assert told["compaction"] is None


def test_it_says_what_compaction_goes_by(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC, **{"cleanup.policy": "compact", "max.compaction.lag.ms": "60000"})
    client.produce(TOPIC, batch_of(b"a"))
    told = explain(broker, 0)["compaction"]
    assert not told["is_compacted"]
    assert told["is_in_active_segment"]
    assert told["not_after_ms"] == pytest.approx(now_ms() + 60_000, abs=20_000)


def test_it_says_which_topic_a_branchs_record_was_written_to(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a"))

    async def branch() -> None:
        await TopicBranches(broker.app.services).begin(BranchRequest(TOPIC, "dev"))

    broker.run(branch())
    client.produce("dev", batch_of(b"b"))
    assert explain(broker, 0, "dev")["branched_from"]["topic"] == TOPIC
    assert explain(broker, 1, "dev")["branched_from"] is None


def test_an_offset_that_is_not_written_yet_is_said_to_be_so(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a"))
    status, told = ask(broker, 1)
    assert (status, told["error"]) == (404, "OFFSET_OUT_OF_RANGE")
    assert "was not written yet" in told["message"]


def test_an_offset_that_was_deleted_is_said_to_be_so(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    client.produce(TOPIC, batch_of(b"a", b"b"))
    log = broker.app._partitions.get(TOPIC, 0).log
    broker.run(broker.app._logs.delete_records_before(log, 1))
    assert "was deleted" in ask(broker, 0)[1]["message"]


@pytest.mark.parametrize(("offset", "partition"), [("x", 0), ("", 0), ("-1", 0), (0, "x"), ("1" * 20, 0)])
def test_what_is_no_number_is_refused(broker: RunningApp, offset: object, partition: object) -> None:
    assert ask(broker, offset, partition=partition)[0] == 400


def test_a_partition_that_is_not_there_is_not_found(broker: RunningApp) -> None:
    assert ask(broker, 0, topic="nothing")[0] == 404


ONE, TWO = 9001, 9002
VISIBLE = {"is_visible": True, "is_aborted": False, "held_by": None}


def test_it_says_which_open_transaction_holds_a_record_back_and_since_when(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    topic = TransactionalTopic(broker, TOPIC)
    topic.write_plain(b"before")
    before_ms = now_ms()
    topic.write(ONE, b"open", epoch=4)
    after_ms = now_ms()
    topic.write(TWO, b"also open")
    topic.write_plain(b"after")
    assert explain(broker, 0)["transaction"] == VISIBLE | {"last_stable_offset": 1}
    for offset in (1, 2, 3):
        told = explain(broker, offset)["transaction"]
        since_ms = told["held_by"].pop("since_ms")
        assert told == {
            "is_visible": False,
            "is_aborted": False,
            "last_stable_offset": 1,
            "held_by": {
                "producer_id": ONE,
                "producer_epoch": 4,
                "first_offset": 1,
                "transactional_id": None,  # these tests write past the coordinator
                "is_hanging": True,
            },
        }
        assert before_ms <= since_ms <= after_ms


def test_it_says_whether_a_record_was_aborted(broker: RunningApp, client: Client) -> None:
    client.create_topic(TOPIC)
    topic = TransactionalTopic(broker, TOPIC)
    topic.write(ONE, b"aborted")
    topic.write(TWO, b"committed")
    topic.end(ONE, commits=False)
    topic.end(TWO, commits=True)
    told = [explain(broker, offset)["transaction"] for offset in range(4)]
    assert [(each["is_visible"], each["is_aborted"]) for each in told] == [
        (False, True),
        (True, False),
        (False, False),
        (False, False),
    ]


def test_a_transaction_that_is_decided_is_not_said_to_be_held_by_one_that_began_later(
    broker: RunningApp, client: Client
) -> None:
    client.create_topic(TOPIC)
    topic = TransactionalTopic(broker, TOPIC)
    topic.write(ONE, b"decided")
    topic.write(TWO, b"open")

    async def explain_while_the_marker_is_flushed() -> Any:
        services = broker.app.services
        partition = services.partitions.get(TOPIC, 0)
        header = partition.log.segments.active.header_at(0)
        partition.append(end_marker(ONE, 0, COORDINATOR_EPOCH, True, now_ms()), ACKS_ALL, is_own=True)
        return await Explaining(services, broker.app.survey)._transaction(partition, header, 0)

    told = broker.run(explain_while_the_marker_is_flushed())
    assert told == {"is_visible": False, "is_aborted": False, "last_stable_offset": 0, "held_by": None}
