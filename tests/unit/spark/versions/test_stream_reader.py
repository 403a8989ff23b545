"""The reader for PySpark 4.0 and 4.1, called in the orders in which those call it, with a real broker behind it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from flowstone import Broker
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.stream import FlowstoneStreamReader, RefusedStreamReader
from pyspark_flowstone.versions.stream_reader import StartTrackingReader

NOT_COMMITTED = -1001


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker):
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=1)
    return name


@pytest.fixture
def produce(broker, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def write(count):
        for _ in range(count):
            producer.produce(topic, b"x")
        assert producer.flush(10) == 0

    return write


@pytest.fixture
def run(broker, topic):
    """The reader of one run of a query, whose group has the topic's name."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    with ExitStack() as made:

        def start(**options):
            reader = StartTrackingReader(FlowstoneStreamReader(parse_options({**given, "groupId": topic, **options})))
            made.callback(reader.stop)
            return reader

        yield start


@pytest.fixture
def committed(broker, topic):
    client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def look():
        asked = [ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0)])]
        return client.list_consumer_group_offsets(asked)[topic].result(20).topic_partitions[0].offset

    return look


@pytest.fixture
def at(topic):
    return lambda offset: {topic: {"0": offset}}


def ranges(reader, start, end):
    return [each.value[1:3] for each in reader.partitions(start, end)]


def latest(reader):
    """Return the next end, without the ids of topics."""
    return without_ids(reader.latestOffset())


def without_ids(offsets):
    return {name: each for name, each in offsets.items() if "@" not in name}


def test_each_micro_batch_of_a_new_query_keeps_to_the_limit(run, produce, at, committed):
    produce(25)
    reader, start = run(maxOffsetsPerTrigger="10"), None
    for end in (10, 20, 25, 25):
        assert latest(reader) == at(end)
        if start != end:
            planned_from = reader.initialOffset() if start is None else at(start)
            assert ranges(reader, planned_from, at(end)) == [(start or 0, end)]
        start = end
    assert committed() == 25


def test_a_run_continues_after_the_last_micro_batch_that_was_finished(run, produce, at, committed):
    produce(25)
    reader = run(maxOffsetsPerTrigger="10")
    assert ranges(reader, at(10), at(10)) == []
    assert latest(reader) == at(20)
    assert committed() == 10


def test_a_run_continues_after_a_planned_micro_batch_that_it_has_to_repeat(run, produce, at, committed):
    produce(25)
    reader = run(maxOffsetsPerTrigger="10")
    assert ranges(reader, at(12), at(12)) == []
    assert ranges(reader, at(5), at(12)) == [(5, 12)]
    assert committed() == NOT_COMMITTED
    assert latest(reader) == at(22)
    assert committed() == 12


def test_a_first_micro_batch_that_has_to_be_repeated_is_read_from_the_initial_offset(run, produce, at):
    produce(25)
    reader = run(maxOffsetsPerTrigger="10")
    assert ranges(reader, at(7), at(7)) == []
    assert ranges(reader, reader.initialOffset(), at(7)) == [(0, 7)]
    assert latest(reader) == at(17)


def test_a_micro_batch_whose_plan_reads_nothing_is_not_planned_again(run, produce, at):
    """A filter that is never true: Spark removes the source from the plan."""
    produce(25)
    reader = run(maxOffsetsPerTrigger="10")
    ranges(reader, at(0), at(0))
    assert [latest(reader) for _ in range(3)] == [at(10), at(20), at(25)]


def test_a_topic_that_was_created_again_ends_a_run_that_continues(broker, topic, run, produce, at):
    produce(5)
    before = run().latestOffset()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.delete_topics([topic], operation_timeout=20)[topic].result(20)
    broker.create_topic(topic, partitions=1)
    produce(9)
    reader = run(maxOffsetsPerTrigger="10")
    assert reader.partitions(before, before) == []
    with pytest.raises(QueryError, match=f"{topic}.*created again"):
        reader.latestOffset()


def test_a_new_query_from_latest_does_not_start_after_its_first_end(run, produce, at):
    produce(3)
    reader = run(startingOffsets="latest")
    assert latest(reader) == at(3)
    produce(4)
    assert ranges(reader, reader.initialOffset(), at(3)) == []
    assert latest(reader) == at(7)


def test_a_query_with_a_minimum_waits(run, produce, at):
    produce(3)
    reader = run(minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert latest(reader) == without_ids(reader.initialOffset()) == at(0)
    assert ranges(reader, at(0), at(0)) == []
    produce(3)
    assert latest(reader) == at(6)


class TestAvailableNow:
    """Spark wraps the source, and asks it for the end of the run before everything else."""

    def test_a_new_query_reads_what_there_is_and_commits_it_at_its_end(self, run, produce, at, committed):
        produce(5)
        reader = run()
        assert latest(reader) == at(5)
        produce(2)
        reader.initialOffset()
        reader.latestOffset()
        assert ranges(reader, reader.initialOffset(), at(5)) == [(0, 5)]
        assert committed() == NOT_COMMITTED
        reader.latestOffset()
        assert committed() == 5

    def test_a_query_with_a_checkpoint_reads_from_there(self, run, produce, at, committed):
        produce(9)
        reader = run()
        assert latest(reader) == at(9)
        assert ranges(reader, at(4), at(4)) == []
        assert committed() == NOT_COMMITTED
        reader.latestOffset()
        assert committed() == 4
        assert ranges(reader, at(4), at(9)) == [(4, 9)]
        produce(3)
        for _ in range(2):  # the second time where another source had something to repeat
            reader.latestOffset()
            assert committed() == 9

    def test_a_start_that_the_checkpoint_replaces_is_not_looked_up_in_vain(self, run, produce, at):
        produce(9)
        reader = run(startingTimestamp="99999999999999")
        assert latest(reader) == at(9)
        assert ranges(reader, at(4), at(4)) == []

    @pytest.mark.parametrize(
        "limit", [{"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "10"}, {"minOffsetsPerTrigger": "99"}]
    )
    def test_a_limit_is_refused_before_a_new_query_plans_anything(self, run, produce, limit):
        produce(9)
        reader = run(**limit)
        reader.latestOffset()
        reader.initialOffset()
        with pytest.raises(QueryError, match=r"in a single micro-batch with .*leave out the limit"):
            reader.latestOffset()

    def test_a_limit_is_refused_where_there_is_a_checkpoint(self, run, produce, at, committed):
        produce(9)
        reader = run(maxOffsetsPerTrigger="3")
        reader.latestOffset()
        with pytest.raises(QueryError, match="a single micro-batch with the trigger availableNow"):
            reader.partitions(at(4), at(4))
        assert committed() == NOT_COMMITTED


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_limited_query_says_once_what_the_trigger_available_now_would_do(run, produce, at, caplog, has_checkpoint):
    produce(9)
    reader = run(maxOffsetsPerTrigger="3")
    if has_checkpoint:
        reader.partitions(at(1), at(1))
    for _ in range(2):
        end = reader.latestOffset()
        reader.partitions(reader.initialOffset(), end)
    said = [each.getMessage() for each in caplog.records if "availableNow" in each.getMessage()]
    assert len(said) == 1
    assert "its limit leaves the other records to the next run" in said[0]


def test_a_stream_that_cannot_be_read_says_so_when_it_is_first_used():
    with pytest.raises(QueryError, match="endingOffsets: no"):
        StartTrackingReader(RefusedStreamReader("endingOffsets: no")).latestOffset()
