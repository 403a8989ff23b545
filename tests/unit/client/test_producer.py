"""Batches written once and in order, through whatever happens to the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from flowstone.client import Cluster, DeliveryFailed, Producer, UnknownTopic, produce_link, producer
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import SEQUENCE_MAX
from tests.unit.client.batches import batch_of
from tests.unit.client.scripted_broker import ScriptedBroker, metadata


@pytest.fixture
def partition(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[Producer]:
    writer = Producer(cluster, deadline_s=10)
    yield writer
    writer.close()


def deliver(writer: Producer, partition: TopicPartition, batch: bytearray) -> None:
    writer.send(partition, batch, 1)
    writer.flush()


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_batches_are_written_in_order_and_their_ends_are_told(broker: Broker, writer: Producer, topic: str):
    for number in range(50):
        writer.send(TopicPartition(topic, number % 2), batch_of(b"%d" % number, b"+"), 2)
    assert writer.flush() == {TopicPartition(topic, 0): 50, TopicPartition(topic, 1): 50}
    written = [value for value in values(broker, topic) if value != b"+"]
    assert written == [b"%d" % number for number in (*range(0, 50, 2), *range(1, 50, 2))]


def test_a_flush_without_batches_tells_nothing(writer: Producer):
    assert writer.flush() == {}


def test_ends_are_told_of_all_that_was_ever_written(writer: Producer, topic: str):
    for index in range(2):
        writer.send(TopicPartition(topic, index), batch_of(b"value"), 1)
        ends = writer.flush()
    assert ends == {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 1}


def test_the_end_of_the_block_waits_for_what_was_sent(broker: Broker, cluster: Cluster, partition: TopicPartition):
    with Producer(cluster) as writer:
        writer.send(partition, batch_of(b"value"), 1)
    assert values(broker, partition.topic) == [b"value"]


def test_sequence_numbers_go_on_at_zero_after_the_last(writer: Producer, partition: TopicPartition):
    queue = writer._queues[partition] = produce_link.PartitionQueue(partition, 10)
    queue.sequence = SEQUENCE_MAX - 1  # a producer that the broker does not know may begin anywhere
    for number in range(4):
        writer.send(partition, batch_of(b"%d" % number, b"+", b"+"), 3)
    assert writer.flush() == {partition: 12}


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
    ],
)
def test_a_batch_is_sent_again_after_an_error_that_passes(
    broker: Broker, writer: Producer, partition: TopicPartition, error: ErrorCode
):
    with broker.fault("Produce", error=error, times=2) as fault:
        for number in range(3):
            writer.send(partition, batch_of(b"%d" % number), 1)
        writer.flush()
    assert fault.hits == 2
    assert values(broker, partition.topic) == [b"0", b"1", b"2"]


def test_a_batch_is_sent_again_after_a_lost_connection(broker: Broker, writer: Producer, partition: TopicPartition):
    with broker.fault("Produce", disconnect=True, times=1) as fault:
        writer.send(partition, batch_of(b"value"), 1)
        assert writer.flush() == {partition: 1}
    assert fault.hits == 1


def test_a_batch_whose_answer_was_lost_is_written_once(
    broker: Broker, writer: Producer, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(produce_link, "ANSWER_TIMEOUT_S", 0.1)
    with broker.fault("Produce", delay_ms=1000, times=1) as fault:  # it is written at once, and answered late
        writer.send(partition, batch_of(b"value"), 1)
        assert writer.flush() == {partition: 1}
    assert fault.hits == 1
    assert values(broker, partition.topic) == [b"value"]


def test_a_batch_that_the_broker_knows_already_counts_as_written(
    broker: Broker, writer: Producer, partition: TopicPartition
):
    with broker.fault("Produce", error=ErrorCode.DUPLICATE_SEQUENCE_NUMBER, times=1):
        writer.send(partition, batch_of(b"value"), 1)
        assert writer.flush() == {}  # where it lies was not told


def test_every_batch_is_written_once_though_the_broker_is_killed_meanwhile():
    with Broker(mode="process") as broker, Cluster(broker.bootstrap) as cluster:
        broker.create_topic("killed", partitions=2)
        with Producer(cluster) as writer:
            for number in range(200):
                writer.send(TopicPartition("killed", number % 2), batch_of(b"%d" % number), 1)
                if number == 100:
                    broker.kill()
                    restarting = threading.Thread(target=broker.restart)
                    restarting.start()
            ends = writer.flush()
        restarting.join()
        assert set(ends.values()) == {100}
        expected = [b"%d" % number for number in (*range(0, 200, 2), *range(1, 200, 2))]
        assert values(broker, "killed") == expected


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "misses records that were acknowledged before"),
        (ErrorCode.INVALID_PRODUCER_EPOCH, "INVALID_PRODUCER_EPOCH"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "may not use the topic"),
    ],
)
def test_an_error_that_does_not_pass_fails_the_delivery(
    broker: Broker, writer: Producer, partition: TopicPartition, error: ErrorCode, sentence: str
):
    with broker.fault("Produce", error=error), pytest.raises(DeliveryFailed, match=f"{partition}: .*{sentence}"):
        deliver(writer, partition, batch_of(b"value"))


def test_a_batch_above_the_topics_limit_is_told_with_its_size(writer: Producer, partition: TopicPartition):
    batch = batch_of(b"x" * 1_100_000)
    with pytest.raises(DeliveryFailed, match=rf"1 records and {len(batch)} bytes: .*max.message.bytes"):
        deliver(writer, partition, batch)


def test_nothing_is_taken_after_a_failure(writer: Producer, partition: TopicPartition):
    with pytest.raises(DeliveryFailed) as first:
        deliver(writer, partition, batch_of(b"x" * 1_100_000))
    with pytest.raises(DeliveryFailed) as second:
        writer.send(partition, batch_of(b"small"), 1)
    assert str(second.value) == str(first.value)


def test_a_topic_that_stays_unknown_is_named(writer: Producer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UnknownTopic, "retry_s_max", 0.1)
    with pytest.raises(DeliveryFailed, match="there is no topic nowhere"):
        deliver(writer, TopicPartition("nowhere", 0), batch_of(b"value"))


def test_an_unreachable_broker_is_told_after_the_deadline():
    gone = TopicPartition("gone", 0)
    with Broker() as broker, Cluster(broker.bootstrap) as cluster:
        broker.create_topic("gone", partitions=1)
        writer = Producer(cluster, deadline_s=0.3)
        deliver(writer, gone, batch_of(b"value"))
        broker.kill()
        with pytest.raises(DeliveryFailed, match=r"gave up after trying for 0.3 s; whether the last batch was written"):
            deliver(writer, gone, batch_of(b"value"))


def test_sending_waits_while_too_much_is_unacknowledged(
    broker: Broker, writer: Producer, partition: TopicPartition, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(producer, "QUEUED_BYTES_MAX", 2500)
    with broker.fault("Produce", delay_ms=20):
        for _ in range(5):
            writer.send(partition, batch_of(b"x" * 1000), 1)
        assert len(broker.records(partition.topic)) >= 3


def test_batches_of_many_partitions_share_a_request(broker: Broker, writer: Producer):
    broker.create_topic("shared", partitions=12)
    with broker.fault("Produce", delay_ms=20) as fault:
        for _ in range(3):
            for index in range(12):
                writer.send(TopicPartition("shared", index), batch_of(b"value"), 1)
        writer.flush()
    assert fault.hits < 20


def test_a_request_is_no_longer_than_it_may_be(broker: Broker, cluster: Cluster, topic: str):
    with Producer(cluster, request_bytes_max=1500) as writer, broker.fault("Produce", delay_ms=1) as fault:
        for _ in range(3):
            for index in range(2):
                writer.send(TopicPartition(topic, index), batch_of(b"x" * 1000), 1)
        writer.flush()
        assert fault.hits == 6


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements_may_be_asked_for(
    broker: Broker, cluster: Cluster, partition: TopicPartition, acks: int
):
    with Producer(cluster, acks=acks, idempotent=False) as writer:
        for number in range(10):
            writer.send(partition, batch_of(b"%d" % number), 1)
        assert writer.flush() == ({partition: 10} if acks else {})
    assert [record.value for record in broker.wait_for(partition.topic, 10)] == [b"%d" % number for number in range(10)]


def test_acknowledgements_that_make_no_sense_are_refused(cluster: Cluster):
    with pytest.raises(ValueError, match="acks is 0, 1 or -1, not 2"):
        Producer(cluster, acks=2)
    with pytest.raises(ValueError, match="needs acks=-1, not 1"):
        Producer(cluster, acks=1)


def test_a_broker_that_is_no_broker_fails_the_delivery():
    orders = TopicPartition("orders", 0)
    with (
        ScriptedBroker(lambda _: None, greeting=b"HTTP/1.1 400 Bad Request\r\n") as impostor,
        ScriptedBroker(lambda _: metadata({orders: 1}, {1: impostor})) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        writer = Producer(cluster, idempotent=False, acks=1)
        with pytest.raises(DeliveryFailed, match="does not speak Kafka's protocol"):
            writer.send(orders, batch_of(b"value"), 1)
