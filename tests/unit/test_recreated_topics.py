"""What a topic leaves to another one of its name: nothing that a group, a session or a test has of the old one."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone import Broker
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.wire_client import Client

WAIT_S = 30.0
BY_ID, BY_NAME = 13, 12  # versions of Fetch


@pytest.fixture(scope="module", params=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with Broker(mode=request.param, settings=settings) as broker:
        yield broker


@pytest.fixture
def name(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    create(broker, name, "a", "b")
    return name


def create(broker: Broker, name: str, *values: str) -> None:
    broker.create_topic(name, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(name, value)
    assert producer.flush(WAIT_S) == 0


def recreate(broker: Broker, name: str, *values: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(WAIT_S)
    create(broker, name, *values)


def consumed(broker: Broker, name: str, count: int, protocol: str) -> list[str]:
    """Return the next records of the group `name`, after committing them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([name])
        found = consumer.consume(count, WAIT_S)
        consumer.commit(asynchronous=False)
        return [message.value().decode() for message in found]
    finally:
        consumer.close()


def worked_off(broker: Broker, name: str, count: int) -> list[str]:
    with flowstone.Queue(name, group=f"{name}-workers", bootstrap=broker.bootstrap) as queue:
        found = []
        while len(found) < count and (task := queue.get(WAIT_S)) is not None:
            with task:
                found.append((task.value or b"").decode())
        return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_has_no_offsets_in_a_topic_that_was_created_again(broker: Broker, name: str, protocol: str) -> None:
    assert consumed(broker, name, 2, protocol) == ["a", "b"]
    recreate(broker, name, "1", "2", "3", "4")
    assert consumed(broker, name, 4, protocol) == ["1", "2", "3", "4"]


def test_a_share_group_has_no_state_in_a_topic_that_was_created_again(broker: Broker, name: str) -> None:
    assert worked_off(broker, name, 2) == ["a", "b"]
    recreate(broker, name, "1", "2", "3", "4")
    assert worked_off(broker, name, 4) == ["1", "2", "3", "4"]


def fetch(client: Client, version: int, session: tuple[int, int], topics: list[m.FetchRequestTopic]) -> m.FetchResponse:
    session_id, epoch = session
    request = m.FetchRequest(
        max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=epoch, topics=topics, max_bytes=1 << 20
    )
    answer = client.ask(version, request)
    assert isinstance(answer, m.FetchResponse)
    return answer


def wanted(client: Client, name: str, offset: int) -> m.FetchRequestTopic:
    described = client.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)]))
    part = m.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return m.FetchRequestTopic(topic=name, topic_id=described.topics[0].topic_id, partitions=[part])


def test_a_fetch_session_by_ids_says_that_its_topic_is_gone(broker: Broker, name: str) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    with Client((host, int(port))) as client:
        session_id = fetch(client, BY_ID, (0, 0), [wanted(client, name, 2)]).session_id
        assert session_id
        recreate(broker, name, "1", "2", "3", "4")
        (topic,) = fetch(client, BY_ID, (session_id, 1), []).responses
        assert topic.partitions[0].error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert not topic.partitions[0].records


def test_a_fetch_session_by_names_goes_on_in_the_new_topic_as_in_kafka(broker: Broker, name: str) -> None:
    """Versions before 13 have no ids: a client finds out from the metadata."""
    host, _, port = broker.bootstrap.rpartition(":")
    with Client((host, int(port))) as client:
        session_id = fetch(client, BY_NAME, (0, 0), [wanted(client, name, 2)]).session_id
        recreate(broker, name)
        answer = fetch(client, BY_NAME, (session_id, 1), [])
        codes = [part.error_code for topic in answer.responses for part in topic.partitions]
        assert codes == [ErrorCode.OFFSET_OUT_OF_RANGE]


def test_records_of_the_old_topic_do_not_count_for_those_that_a_test_waits_for(broker: Broker, name: str) -> None:
    assert [each.value for each in broker.wait_for(name, 2)] == [b"a", b"b"]
    found: list[list[flowstone.embedded.Record]] = []
    waiting = threading.Thread(target=lambda: found.append(broker.wait_for(name, 4, timeout=WAIT_S)))
    waiting.start()
    time.sleep(1)
    recreate(broker, name, "1", "2", "3", "4")
    waiting.join()
    assert [each.value for each in found[0]] == [b"1", b"2", b"3", b"4"]
    assert [each.value for each in broker.records(name)] == [b"1", b"2", b"3", b"4"]
