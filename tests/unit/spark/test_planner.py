"""The stream reader, asked as Spark asks it, in this process, with a real broker behind it."""

from __future__ import annotations

import logging
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from flowstone import Broker
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.planner import IDLE_GAP_S, IDLE_WAIT_S
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.stream import FlowstoneStreamReader
from pyspark_flowstone.versions import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture
def topic(broker):
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def produce(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def write(count, partition=0, value=b"x"):
        for _ in range(count):
            producer.produce(topic, value, partition=partition)
        assert producer.flush(10) == 0

    return write


@pytest.fixture
def reader(broker, topic):
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    with ExitStack() as made:

        def make(**options):
            reader = FlowstoneStreamReader(parse_options({**given, **options}))
            made.callback(reader.stop)
            return reader

        yield make


def committed(broker, group, topic):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)])]
    found = client.list_consumer_group_offsets(asked)[group].result(10).topic_partitions
    return [each.offset for each in found]


def offsets(checkpointed):
    """Return what a checkpoint has without the ids of the topics."""
    return {topic: partitions for topic, partitions in checkpointed.items() if partitions}


def test_where_latest_is_does_not_move_between_two_questions(reader, topic, produce):
    source = reader(startingOffsets="latest")
    first = source.initialOffset()
    produce(3)
    assert source.initialOffset() == first
    assert offsets(first) == {topic: {"0": 0, "1": 0}}


def test_the_default_limit_is_the_one_that_options_set(reader):
    assert reader().getDefaultReadLimit() == ALL
    assert reader(maxOffsetsPerTrigger="5", maxBytesPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(5)
    assert reader(maxBytesPerTrigger="7").getDefaultReadLimit() == ReadMaxBytes(7)
    assert reader(minOffsetsPerTrigger="3").getDefaultReadLimit() == ReadMinRows(3)


def test_spark_may_ask_for_everything_whatever_the_options_say(reader, topic, produce):
    produce(10)
    source = reader(maxOffsetsPerTrigger="4")
    assert offsets(source.latestOffset({topic: {"0": 0, "1": 0}}, ReadMaxRows(4))) == {topic: {"0": 4, "1": 0}}
    assert offsets(source.latestOffset({topic: {"0": 0, "1": 0}}, ALL)) == {topic: {"0": 10, "1": 0}}


def test_a_batch_without_anything_to_read_has_no_tasks(reader, topic, produce):
    produce(5)
    assert reader().partitions({topic: {"0": 5, "1": 0}}, {topic: {"0": 5, "1": 0}}) == []


def test_a_batch_that_is_planned_again_by_another_planner_is_the_same(reader, topic, produce):
    produce(100)
    bounds = {topic: {"0": 10, "1": 0}}, {topic: {"0": 90, "1": 0}}
    first, again = (reader(minPartitions="3").partitions(*bounds) for _ in range(2))
    assert [each.value for each in first] == [each.value for each in again]
    assert len(first) == 3


def test_it_can_be_pickled_as_spark_does_before_it_is_asked_anything(reader, topic, produce):
    produce(2)
    source = pickle.loads(pickle.dumps(reader(columns="offset")))
    (part,) = source.partitions({topic: {"0": 0, "1": 0}}, {topic: {"0": 2, "1": 0}})
    assert [batch.column("offset").to_pylist() for batch in source.read(part)] == [[0, 1]]


def test_asked_again_and_again_about_nothing_it_takes_its_time(reader, topic):
    source = reader()
    start = source.initialOffset()
    assert source.latestOffset(start, ALL) == start
    began = time.monotonic()
    for _ in range(3):
        assert source.latestOffset(start, ALL) == start
    assert time.monotonic() - began > 3 * IDLE_WAIT_S * 0.9


def test_asked_again_and_again_about_too_little_it_takes_its_time(reader, topic, produce):
    produce(3)
    source = reader(minOffsetsPerTrigger="5")
    start = source.initialOffset()
    assert source.latestOffset(start, ReadMinRows(5)) == start
    began = time.monotonic()
    assert source.latestOffset(start, ReadMinRows(5)) == start
    assert time.monotonic() - began > IDLE_WAIT_S * 0.9
    produce(2)
    assert offsets(source.latestOffset(start, ReadMinRows(5))) == {topic: {"0": 5, "1": 0}}


@pytest.mark.measures_time
def test_after_a_batch_it_answers_at_once(reader, topic):
    source = reader()
    start = source.initialOffset()
    source.latestOffset(start, ALL)
    time.sleep(IDLE_GAP_S * 1.5)  # as long as another source's batch, at least
    began = time.monotonic()
    source.latestOffset(start, ALL)
    assert time.monotonic() - began < IDLE_WAIT_S * 0.9


def test_while_it_takes_its_time_a_record_is_seen_at_once(reader, topic, produce, monkeypatch):
    monkeypatch.setattr("pyspark_flowstone.planner.IDLE_WAIT_S", 30.0)
    source = reader()
    start = source.initialOffset()
    source.latestOffset(start, ALL)
    writer = threading.Timer(0.2, produce, [1])
    writer.start()
    began = time.monotonic()
    assert offsets(source.latestOffset(start, ALL)) == {topic: {"0": 1, "1": 0}}
    assert time.monotonic() - began < 10
    writer.join()


def test_what_comes_after_the_end_was_pinned_does_not_count(reader, topic, produce):
    produce(4)
    source = reader()
    source.prepareForTriggerAvailableNow()
    produce(4)
    end = source.latestOffset({topic: {"0": 0, "1": 0}}, ALL)
    assert offsets(end) == {topic: {"0": 4, "1": 0}}
    assert source.latestOffset(end, ALL) == end


def test_fewer_offsets_than_wanted_do_not_hold_up_a_query_that_ends(reader, topic, produce):
    produce(4)
    source = reader(minOffsetsPerTrigger="100")
    source.prepareForTriggerAvailableNow()
    assert offsets(source.latestOffset({topic: {"0": 0, "1": 0}}, ReadMinRows(100))) == {topic: {"0": 4, "1": 0}}


def test_a_checkpoint_of_something_else_is_refused(reader):
    with pytest.raises(QueryError, match="checkpointLocation: the checkpoint holds no offsets of topics"):
        reader().latestOffset({"index": 7}, ALL)


def test_what_is_finished_is_committed_to_the_group(broker, reader, topic, produce):
    produce(5)
    source = reader(groupId="finished")
    end = source.latestOffset({topic: {"0": 2, "1": 0}}, ALL)
    assert committed(broker, "finished", topic) == [2, 0]
    source.commit(end)
    assert committed(broker, "finished", topic) == [5, 0]


def test_a_group_with_members_is_left_alone_and_the_query_goes_on(broker, reader, topic, produce, caplog):
    produce(5)
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "taken", "auto.offset.reset": "earliest"})
    try:
        member.subscribe([topic])
        assert member.poll(10) is not None
        source = reader(groupId="taken")
        assert offsets(source.latestOffset({topic: {"0": 0, "1": 0}}, ALL)) == {topic: {"0": 5, "1": 0}}
        source.latestOffset({topic: {"0": 5, "1": 0}}, ALL)
    finally:
        member.close()
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "the query continues, but its progress is not committed to group taken: " in warning


def test_without_a_group_one_warning_names_the_option(reader, topic, caplog):
    source = reader()
    start = source.initialOffset()
    for _ in range(3):
        source.latestOffset(start, ALL)
    assert [each.getMessage() for each in caplog.records if "groupId" in each.getMessage()] == [
        "flowstone: this query commits to no consumer group, so its lag cannot be monitored; "
        "set the option groupId to a group of its own"
    ]


def delete_records(broker, topic, before):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in client.delete_records([TopicPartition(topic, 0, before)]).values():
        done.result(10)


def test_offsets_that_go_after_a_task_was_planned_end_it_and_are_named(broker, reader, topic, produce):
    produce(10)
    source = reader(columns="offset")
    (part,) = source.partitions({topic: {"0": 2, "1": 0}}, {topic: {"0": 10, "1": 0}})
    delete_records(broker, topic, 6)
    with pytest.raises(QueryError, match=f"{topic}-0: offsets 2 to 5 are gone, the log starts at 6 now"):
        list(source.read(part))


def test_a_task_goes_on_without_offsets_that_went_and_says_so(broker, reader, topic, produce, caplog):
    produce(10)
    source = reader(columns="offset", failOnDataLoss="false")
    (part,) = source.partitions({topic: {"0": 2, "1": 0}}, {topic: {"0": 10, "1": 0}})
    delete_records(broker, topic, 6)
    assert [offset for batch in source.read(part) for offset in batch.column("offset").to_pylist()] == [6, 7, 8, 9]
    assert f"{topic}-0: offsets 2 to 5 are gone" in caplog.text


def test_a_task_all_of_whose_offsets_went_has_no_rows(broker, reader, topic, produce, caplog):
    produce(10)
    source = reader(columns="offset", failOnDataLoss="false")
    (part,) = source.partitions({topic: {"0": 2, "1": 0}}, {topic: {"0": 5, "1": 0}})
    delete_records(broker, topic, 8)
    assert list(source.read(part)) == []
    assert f"{topic}-0: offsets 2 to 7 are gone" in caplog.text
