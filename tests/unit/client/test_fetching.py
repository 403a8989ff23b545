"""Ranges of a partition's offsets, read from a running broker through whatever happens to it."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import TopicPartition as AdminPartition
from confluent_kafka.admin import AdminClient

from flowstone.client import (
    LATEST,
    Cluster,
    GaveUp,
    OffsetsLost,
    OffsetsNotWritten,
    Producer,
    TopicRecreated,
    UnknownTopic,
    connection,
)
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.client.batches import batch_of, offsets_of, records_of
from tests.unit.client.conftest import Fill

# Of what `large` writes: more than three responses.
LARGE_RECORDS = 14_000


@pytest.fixture
def large(fill: Fill) -> TopicPartition:
    return fill(140, records=100, value_bytes=1000)


def delete_before(broker: Broker, partition: TopicPartition, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    wanted = AdminPartition(partition.topic, partition.partition, offset)
    admin.delete_records([wanted])[wanted].result(10)


def test_a_range_comes_as_the_whole_batches_that_hold_it(cluster: Cluster, fill: Fill):
    partition = fill(5)
    (fetched,) = cluster.fetch(partition, 12, 27)
    assert offsets_of([fetched])[:1] == [10]
    assert {*range(12, 27)} <= {*offsets_of([fetched])}
    assert (fetched.aborted, fetched.log_start_offset, fetched.high_watermark) == ((), 0, 50)


def test_an_empty_range_sends_no_request():
    with Cluster("127.0.0.1:1") as cluster:
        assert list(cluster.fetch(TopicPartition("nowhere", 0), 5, 5)) == []


def test_a_long_range_comes_in_several_responses_in_order(cluster: Cluster, large: TopicPartition):
    fetched = list(cluster.fetch(large, 0, LARGE_RECORDS))
    assert len(fetched) > 3
    assert offsets_of(fetched) == list(range(LARGE_RECORDS))


def test_what_was_fetched_stays_as_it_is_for_as_long_as_it_is_held(cluster: Cluster, large: TopicPartition):
    fetched = list(cluster.fetch(large, 0, LARGE_RECORDS))
    assert len(list(cluster.fetch(large, 0, LARGE_RECORDS))) == len(fetched)
    assert [int(record.value or b"") for record in records_of(fetched)] == list(range(LARGE_RECORDS))


def test_little_is_fetched_beyond_the_end_of_a_range(cluster: Cluster, large: TopicPartition):
    sizes = [len(fetched.records) for fetched in cluster.fetch(large, 0, 5000)]
    assert sum(sizes) < 6_000_000


def test_the_next_request_is_on_the_wire_while_a_response_is_used(
    broker: Broker, cluster: Cluster, large: TopicPartition
):
    with broker.fault("Fetch", delay_ms=1) as fault:
        ranges = cluster.fetch(large, 0, LARGE_RECORDS)
        next(ranges)
        fault.wait(hits=2)
        ranges.close()


def test_ranges_may_be_read_in_turn(cluster: Cluster, large: TopicPartition):
    first, second = cluster.fetch(large, 0, LARGE_RECORDS), cluster.fetch(large, 7000, LARGE_RECORDS)
    taken = [next(first), next(second), next(first), next(second)]
    assert offsets_of([*taken[::2], *first]) == list(range(LARGE_RECORDS))
    assert offsets_of([*taken[1::2], *second]) == list(range(7000, LARGE_RECORDS))


def test_a_range_that_is_given_up_leaves_the_cluster_usable(cluster: Cluster, large: TopicPartition):
    abandoned = cluster.fetch(large, 0, LARGE_RECORDS)
    next(abandoned)
    abandoned.close()
    assert offsets_of(cluster.fetch(large, 13_900, LARGE_RECORDS)) == list(range(13_900, LARGE_RECORDS))


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_a_range_continues_after_a_transient_error(
    broker: Broker, cluster: Cluster, large: TopicPartition, error: ErrorCode
):
    ranges = cluster.fetch(large, 0, LARGE_RECORDS)
    taken = [next(ranges)]
    with broker.fault("Fetch", error=error, times=2) as fault:
        assert offsets_of([*taken, *ranges]) == list(range(LARGE_RECORDS))
    assert fault.hits == 2


def test_a_range_continues_after_a_lost_connection(broker: Broker, cluster: Cluster, large: TopicPartition):
    ranges = cluster.fetch(large, 0, LARGE_RECORDS)
    taken = [next(ranges)]
    with broker.fault("Fetch", disconnect=True, times=2) as fault:
        assert offsets_of([*taken, *ranges]) == list(range(LARGE_RECORDS))
    assert fault.hits == 2


def test_a_range_continues_after_its_broker_was_killed_and_started_again():
    with Broker(mode="process") as broker, Cluster(broker.bootstrap) as cluster:
        broker.create_topic("long", partitions=1)
        partition = TopicPartition("long", 0)
        with Producer(cluster) as producer:
            for _ in range(100):
                producer.send(partition, batch_of(*[b"x" * 1000] * 100), 100)
        ranges = cluster.fetch(partition, 0, 10_000)
        taken = [next(ranges)]
        broker.kill()
        restarting = threading.Thread(target=broker.restart)
        restarting.start()
        assert offsets_of([*taken, *ranges]) == list(range(10_000))
        restarting.join()


def test_records_that_are_not_written_yet_are_waited_for(cluster: Cluster, broker: Broker, topic: str):
    partition = TopicPartition(topic, 0)

    def write() -> None:
        with Cluster(broker.bootstrap) as other, Producer(other) as producer:
            producer.send(partition, batch_of(b"late"), 1)

    with broker.fault("Fetch", delay_ms=1) as fault:
        writing = threading.Thread(target=lambda: (fault.wait(), write()))
        writing.start()
        assert offsets_of(cluster.fetch(partition, 0, 1)) == [0]
        writing.join()


def test_records_that_never_arrive_are_reported_after_the_deadline(broker: Broker, fill: Fill):
    partition = fill(1)
    with Cluster(broker.bootstrap, deadline_s=0.2) as cluster, pytest.raises(GaveUp, match="ends at 10"):
        list(cluster.fetch(partition, 5, 11))


def test_offsets_below_the_log_start_are_lost_and_not_skipped(broker: Broker, cluster: Cluster, fill: Fill):
    partition = fill(3)
    delete_before(broker, partition, 15)
    with pytest.raises(OffsetsLost, match="offsets 3 to 14 are gone, the log now starts at 15") as caught:
        list(cluster.fetch(partition, 3, 30))
    assert (caught.value.partition, caught.value.start, caught.value.log_start) == (partition, 3, 15)
    assert offsets_of(cluster.fetch(partition, 15, 30))[-1] == 29


def test_offsets_that_are_lost_while_a_range_is_read_are_reported(
    broker: Broker, cluster: Cluster, large: TopicPartition
):
    ranges = cluster.fetch(large, 0, LARGE_RECORDS)
    with broker.fault("Fetch", delay_ms=1) as fault:
        next(ranges)
        fault.wait(hits=2)  # the second is sent ahead, and does not miss anything
    delete_before(broker, large, 13_999)
    reached = offsets_of([next(ranges)])[-1]
    with pytest.raises(OffsetsLost) as caught:
        list(ranges)
    assert (caught.value.start, caught.value.log_start) == (reached + 1, 13_999)


def test_offsets_beyond_the_log_end_are_not_waited_for(cluster: Cluster, fill: Fill):
    partition = fill(1)
    with pytest.raises(OffsetsNotWritten, match="offset 50 was asked for, but the log ends at 10"):
        list(cluster.fetch(partition, 50, 60))


def test_a_topic_that_was_deleted_is_named(broker: Broker, cluster: Cluster, fill: Fill, monkeypatch):
    monkeypatch.setattr(UnknownTopic, "retry_s_max", 0.1)
    partition = fill(1)
    assert cluster.list_offsets({partition: LATEST})[partition].offset == 10
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([partition.topic])[partition.topic].result(10)
    with pytest.raises(UnknownTopic, match=partition.topic):
        list(cluster.fetch(partition, 0, 10))


def recreate(broker: Broker, cluster: Cluster, topic: str, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(10)
    broker.create_topic(topic, partitions=2)
    with Producer(cluster) as producer:
        producer.send(TopicPartition(topic, 0), batch_of(*[b"new"] * records), records)


@pytest.fixture(params=["by id", "by name"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How topics can be fetched: by name alone from brokers before Kafka 3.1."""
    if request.param == "by name":
        monkeypatch.setattr(connection, "FETCH_BY_ID", (99, 99))
    return str(request.param)


def test_a_topic_with_a_known_id_is_read(cluster: Cluster, fill: Fill, topic: str, served: str):
    partition = fill(5)
    topic_id = cluster.describe_topics([topic])[topic].topic_id
    assert topic_id is not None
    assert offsets_of(cluster.fetch(partition, 0, 50, topic_id=topic_id)) == list(range(50))


def test_a_topic_that_was_created_again_is_not_read(
    broker: Broker, cluster: Cluster, fill: Fill, topic: str, served: str
):
    partition = fill(1)
    topic_id = cluster.describe_topics([topic])[topic].topic_id
    recreate(broker, cluster, topic, 20)
    with pytest.raises(TopicRecreated, match=f"topic {topic} was deleted and created again"):
        list(cluster.fetch(partition, 0, 10, topic_id=topic_id))
    assert len(offsets_of(cluster.fetch(partition, 0, 20))) == 20


def test_a_topic_that_is_created_again_while_it_is_read_is_an_error(
    broker: Broker, cluster: Cluster, large: TopicPartition, topic: str, served: str
):
    topic_id = cluster.describe_topics([topic])[topic].topic_id
    fetched = cluster.fetch(large, 0, LARGE_RECORDS, topic_id=topic_id)
    next(fetched)
    recreate(broker, cluster, topic, LARGE_RECORDS)
    with pytest.raises(TopicRecreated):
        list(fetched)


def test_a_topic_with_a_known_id_that_is_gone_is_an_error(broker: Broker, fill: Fill, topic: str):
    partition = fill(1)
    with Cluster(broker.bootstrap, deadline_s=1) as cluster:
        topic_id = cluster.describe_topics([topic])[topic].topic_id
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(10)
        with pytest.raises(UnknownTopic):
            list(cluster.fetch(partition, 0, 10, topic_id=topic_id))
