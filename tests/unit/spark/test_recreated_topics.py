"""Topics that are deleted and created again: found by their ids, whatever the offsets say."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from flowstone import Broker
from flowstone.client.connection import VERSIONS
from flowstone.wire.messages import MetadataRequest
from pyspark_flowstone import connections
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.source import FlowstoneReader
from pyspark_flowstone.stream import FlowstoneStreamReader
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import ReadAllAvailable, ReadMaxRows

ALL = ReadAllAvailable()
WITHOUT_IDS = (7, 9)  # the versions of Metadata that brokers before Kafka 2.8 have


@pytest.fixture(autouse=True)
def reset_connections() -> Callable[[], None]:
    """Return a function that has the next requests use new connections, as every test does."""

    def reset() -> None:
        for cluster in connections._clusters.values():
            cluster.close()

    reset()
    return reset


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


class Topic:
    def __init__(self, broker: Broker) -> None:
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(self, *values: str) -> None:
        self._broker.create_topic(self.name, partitions=1)
        self.produce(*values)

    def produce(self, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for value in values:
            producer.produce(self.name, value, partition=0)
        assert producer.flush(10) == 0

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(10)

    def recreate(self, *values: str) -> None:
        self.delete()
        self.create(*values)


@pytest.fixture
def topic(broker: Broker) -> Topic:
    topic = Topic(broker)
    topic.create("a", "b")
    return topic


@pytest.fixture
def make(broker: Broker, topic: Topic) -> Iterator[Any]:
    """Return a function that makes a stream reader, as each run of a query has one of its own."""
    with ExitStack() as made:

        def make(**options: str) -> FlowstoneStreamReader:
            given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name, "columns": "value"}
            reader = FlowstoneStreamReader(parse_options({**given, "startingOffsets": "earliest", **options}))
            made.callback(reader.stop)
            return reader

        yield make


def values(reader: Any, parts: Any) -> list[str]:
    return [value.decode() for part in parts for rows in reader.read(part) for value in rows["value"].to_pylist()]


def batch(reader: FlowstoneStreamReader, start: Any, limit: Any = ALL) -> tuple[Any, list[str]]:
    """Return the end of a micro-batch and its values."""
    end = reader.latestOffset(start, limit)
    return end, values(reader, reader.partitions(start, end))


def finished(make: Any, **options: str) -> Any:
    """Return the checkpoint of a query that has read two records."""
    reader = make(**options)
    end, found = batch(reader, reader.initialOffset())
    assert found == ["a", "b"]
    return end


def test_a_query_does_not_go_on_at_old_offsets(make, topic):
    checkpoint = finished(make)
    topic.recreate("1", "2", "3", "4")
    with pytest.raises(QueryError) as refused:
        make().latestOffset(checkpoint, ALL)
    assert f"topic {topic.name} was deleted and created again" in str(refused.value)
    assert "up to offset 2 of partition 0" in str(refused.value)
    assert "with a new checkpoint), or set failOnDataLoss=false" in str(refused.value)


@pytest.mark.parametrize("count", [1, 2, 4], ids=["fewer", "as many", "more"])
def test_without_fail_on_data_loss_the_new_topic_is_read_from_its_start(make, topic, caplog, count):
    checkpoint = finished(make)
    new = [str(number) for number in range(count)]
    topic.recreate(*new)
    reader = make(failOnDataLoss="false")
    end, found = batch(reader, checkpoint)
    assert found == new
    warnings = [each.getMessage() for each in caplog.records if "created again" in each.getMessage()]
    assert len(warnings) == 1
    topic.produce("last")
    assert batch(reader, end)[1] == ["last"]


def test_an_end_that_was_planned_without_its_start_is_compared_too(make, topic, caplog):
    """PySpark 4.0 and 4.1 do not always tell the planner the start; an end may also be one of a more lenient run."""
    checkpoint = finished(make)
    topic.recreate("1", "2", "3", "4")
    end = make().initialOffset() | {topic.name: {"0": 4}}
    with pytest.raises(QueryError, match="was deleted and created again"):
        make().partitions(checkpoint, end)
    lenient = make(failOnDataLoss="false")
    assert values(lenient, lenient.partitions(checkpoint, end)) == ["1", "2", "3", "4"]
    assert "was deleted and created again" in caplog.text


def test_limits_hold_for_the_new_topic(make, topic):
    checkpoint = finished(make)
    topic.recreate("1", "2", "3", "4")
    reader = make(failOnDataLoss="false", maxOffsetsPerTrigger="3")
    end, found = batch(reader, checkpoint, ReadMaxRows(3))
    assert found == ["1", "2", "3"]
    assert batch(reader, end, ReadMaxRows(3))[1] == ["4"]


def test_a_new_topic_without_records_is_noted(make, topic):
    checkpoint = finished(make)
    topic.recreate()
    reader = make(failOnDataLoss="false")
    end, found = batch(reader, checkpoint)
    assert (end[topic.name], found) == ({"0": 0}, [])
    assert end != checkpoint
    topic.produce("1", "2")
    assert batch(make(), end)[1] == ["1", "2"]


def test_a_running_query_notices_too(make, topic, monkeypatch):
    monkeypatch.setattr("pyspark_flowstone.planner.METADATA_AGE_MAX_S", 0.0)
    reader = make()
    checkpoint, _ = batch(reader, reader.initialOffset())
    topic.recreate("1", "2", "3", "4")
    with pytest.raises(QueryError, match="was deleted and created again"):
        reader.latestOffset(checkpoint, ALL)


def test_a_micro_batch_that_is_run_again_does_not_read_the_new_topic(make, topic, caplog):
    first = make()
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    topic.recreate("1", "2", "3", "4")
    with pytest.raises(QueryError, match=f"topic {topic.name} was deleted and created again after this read"):
        values(first, first.partitions(start, end))
    again = make(failOnDataLoss="false")
    assert values(again, again.partitions(start, end)) == []
    assert "offsets 0 to 1 of partition 0 are gone" in caplog.text
    assert batch(again, end)[1] == ["1", "2", "3", "4"]


def test_ends_of_the_new_topic_under_the_old_id_are_not_taken_for_read(make, topic):
    """The planner's knowledge of topics may be a second old; the new topic's end then comes with the old id."""
    reader = make(failOnDataLoss="false")
    checkpoint, _ = batch(reader, reader.initialOffset())
    topic.recreate("1", "2", "3", "4")
    end, found = batch(reader, checkpoint)
    assert found == []
    assert batch(make(failOnDataLoss="false"), end)[1] == ["1", "2", "3", "4"]


def test_an_available_now_run_ends_where_it_was_pinned(make, topic):
    reader = make(failOnDataLoss="false")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    topic.recreate("1", "2", "3", "4")
    end, found = batch(reader, start)
    assert found == []
    assert reader.latestOffset(end, ALL) == end
    assert batch(make(failOnDataLoss="false"), end)[1] == ["1", "2", "3", "4"]


def test_checkpoints_without_ids_are_used_and_get_them(make, topic):
    old = {topic.name: {"0": 1}}  # of the Kafka connector, or of a release without ids
    end, found = batch(make(), old)
    assert found == ["b"]
    topic.recreate("1", "2", "3", "4")
    with pytest.raises(QueryError, match="was deleted and created again"):
        make().latestOffset(end, ALL)


def test_an_idle_query_with_such_a_checkpoint_has_the_id_after_one_empty_micro_batch(make, topic):
    reader, old = make(), {topic.name: {"0": 2}}
    end, found = batch(reader, old)
    assert (found, end[topic.name]) == ([], old[topic.name])
    assert end != old
    assert reader.latestOffset(end, ALL) == end


def test_a_broker_without_topic_ids_is_read_by_offsets_alone(make, topic, monkeypatch, reset_connections):
    monkeypatch.setitem(VERSIONS, MetadataRequest, WITHOUT_IDS)
    reset_connections()
    checkpoint = finished(make)
    assert checkpoint == {topic.name: {"0": 2}}
    topic.produce("c")
    assert batch(make(), checkpoint)[1] == ["c"]
    topic.recreate("1")
    with pytest.raises(QueryError, match="the topic was probably deleted and created again"):
        batch(make(), checkpoint)


def test_an_id_is_kept_while_a_broker_tells_none(make, topic, monkeypatch, reset_connections):
    checkpoint = finished(make)
    with monkeypatch.context() as patch:
        patch.setitem(VERSIONS, MetadataRequest, WITHOUT_IDS)
        reset_connections()
        assert make().latestOffset(checkpoint, ALL) == checkpoint


def test_progress_of_the_old_topic_is_not_committed_for_the_new_one(make, topic, broker):
    checkpoint = finished(make)
    topic.recreate("1", "2", "3", "4")
    make(failOnDataLoss="false", groupId="recreated").latestOffset(checkpoint, ALL)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("recreated")]).values()
    assert [(each.topic, each.offset) for each in found.result(10).topic_partitions] == [(topic.name, 0)]


def test_a_batch_read_that_was_planned_before_does_not_read_the_new_topic(broker, topic, caplog):
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name, "columns": "value"}
    reader, lenient = (FlowstoneReader(parse_options({**given, "failOnDataLoss": loss})) for loss in ("true", "false"))
    parts = reader.partitions()
    topic.recreate("1", "2", "3", "4")
    with pytest.raises(QueryError, match=f"topic {topic.name} was deleted and created again after this read"):
        values(reader, parts)
    assert values(lenient, parts) == []
    assert f"topic {topic.name} was deleted and created again" in caplog.text
    assert values(lenient, lenient.partitions()) == ["1", "2", "3", "4"]


def test_offsets_of_a_checkpoint_as_starting_offsets_are_those_of_its_topic(broker, make, topic, caplog):
    checkpoint = finished(make)
    topic.produce("c")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic.name, "columns": "value"}
    options["startingOffsets"] = json.dumps(checkpoint)
    reader = FlowstoneReader(parse_options(options))
    assert values(reader, reader.partitions()) == ["c"]
    topic.recreate("1", "2", "3", "4")
    for refused in (reader.partitions, make(startingOffsets=json.dumps(checkpoint)).initialOffset):
        with pytest.raises(QueryError, match=f"topic {topic.name} was deleted and created again"):
            refused()
    lenient = FlowstoneReader(parse_options({**options, "failOnDataLoss": "false"}))
    assert values(lenient, lenient.partitions()) == ["1", "2", "3", "4"]
    assert f"topic {topic.name} was deleted and created again" in caplog.text


def test_an_id_that_is_none_is_refused(make, topic):
    with pytest.raises(OptionError, match="startingOffsets: 'x' is no id of topic orders"):
        make(startingOffsets='{"orders@x": {}}')
    with pytest.raises(QueryError, match=r"checkpointLocation: .*'x' is no id of topic orders"):
        make().latestOffset({"orders": {"0": 1}, "orders@x": {}}, ALL)
