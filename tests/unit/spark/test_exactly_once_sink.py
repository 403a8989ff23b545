"""What the exactly-once sink commits, and what makes it abort: on a real broker, with the reports that tasks give."""

from __future__ import annotations

import pickle
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from flowstone.client import LATEST, Cluster
from flowstone.client.groups import CommittedOffset
from flowstone.embedded import Broker
from flowstone.types import TopicPartition
from pyspark_flowstone import exactly_once_sink as module
from pyspark_flowstone.exactly_once_sink import (
    ExactlyOnceBatchWriter,
    ExactlyOnceStreamWriter,
    Report,
    batch_writer,
    stream_writer,
)
from pyspark_flowstone.placement import MARK
from pyspark_flowstone.reporting import QueryError
from pyspark_flowstone.sink import FlowstoneStreamWriter, FlowstoneWriter

SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType(), True, {MARK: True}),
    ]
)
QUERY = "query-1"


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker):
    name = f"t-{uuid.uuid4().hex[:8]}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def options(broker, topic):
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "topic": topic,
        "delivery": "exactly-once",
        "sinkName": topic,
    }


@pytest.fixture
def cluster(broker):
    with Cluster(broker.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def run_task(monkeypatch):
    """Run one task of a micro-batch with the writer that Spark would have pickled for it."""

    def run(writer, partition, values, *, batch=0, query=QUERY, attempt=0):
        properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
        task = SimpleNamespace(
            attemptNumber=lambda: attempt, partitionId=lambda: partition, getLocalProperty=properties.get
        )
        for each in (module, module.write_rows.__globals__):
            target = each if isinstance(each, dict) else vars(each)
            monkeypatch.setitem(target, "TaskContext", SimpleNamespace(get=lambda: task))
        rows = pa.RecordBatch.from_pydict(
            {
                "key": pa.nulls(len(values), pa.string()),
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([partition] * len(values), pa.int32()),
            }
        )
        return pickle.loads(pickle.dumps(writer)).write(iter([rows]))

    return run


def planned(options, kind=ExactlyOnceStreamWriter):
    """A writer as the tasks get it: its transaction has begun."""
    return pickle.loads(pickle.dumps(kind(options, SCHEMA)))


def visible(broker, topic, cluster, wanted):
    """The values that a read_committed reader sees; waits a little until there are as many as wanted."""
    ends = {}
    for _ in range(400):
        ends = cluster.list_offsets({TopicPartition(topic, each): LATEST for each in range(2)}, read_committed=True)
        if sum(each.offset for each in ends.values()) >= wanted:
            break
    return sum(each.offset for each in ends.values())


def test_what_tasks_wrote_is_committed_with_the_number_of_the_micro_batch(broker, topic, options, cluster, run_task):
    writer = planned(options)
    reports = [run_task(writer, 0, [b"a", b"b"], batch=7), run_task(writer, 1, [b"c"], batch=7)]
    assert visible(broker, topic, cluster, 0) == 0
    ExactlyOnceStreamWriter(options, SCHEMA).commit(reports, 7)  # Spark makes another writer to commit
    assert visible(broker, topic, cluster, 5) == 5  # three records and two markers
    assert cluster.stable_offsets(f"flowstone.{topic}") == {TopicPartition(topic, 0): CommittedOffset(7, QUERY)}


def test_a_committed_micro_batch_is_skipped_and_the_next_is_not(options, run_task):
    writer = planned(options)
    ExactlyOnceStreamWriter(options, SCHEMA).commit([run_task(writer, 0, [b"a"], batch=3)], 3)
    again = planned(options)
    assert run_task(again, 0, [b"a"], batch=3).is_skipped
    assert run_task(again, 0, [b"a"], batch=2).is_skipped
    assert not run_task(again, 0, [b"a"], batch=4).is_skipped


def test_the_number_of_another_query_says_nothing(options, run_task):
    """A checkpoint that was deleted begins at 0 again, with a new query id."""
    ExactlyOnceStreamWriter(options, SCHEMA).commit([run_task(planned(options), 0, [b"a"], batch=3)], 3)
    assert not run_task(planned(options), 0, [b"a"], batch=0, query="query-2").is_skipped


def test_a_skipped_micro_batch_commits_nothing(broker, topic, options, cluster, run_task):
    ExactlyOnceStreamWriter(options, SCHEMA).commit([run_task(planned(options), 0, [b"a"], batch=0)], 0)
    again = planned(options)
    reports = [run_task(again, each, [b"a"], batch=0) for each in (0, 1)]
    ExactlyOnceStreamWriter(options, SCHEMA).commit(reports, 0)
    assert visible(broker, topic, cluster, 2) == 2


def test_numbers_are_read_after_the_transaction_has_begun(options, run_task, monkeypatch):
    """Read before, they would miss a micro-batch that the run before commits in between."""
    old = planned(options)
    report = run_task(old, 0, [b"a"], batch=0)
    committing = ExactlyOnceStreamWriter(options, SCHEMA)
    real = Cluster.begin_transaction

    def begin(self, *given):
        committing.commit([report], 0)  # at the last moment
        return real(self, *given)

    monkeypatch.setattr(Cluster, "begin_transaction", begin)
    new = planned(options)
    monkeypatch.undo()
    assert new._begun.last_batches == {QUERY: 0}


def test_a_second_attempt_of_a_task_is_refused(options, run_task):
    with pytest.raises(QueryError, match="a second time, which is refused"):
        run_task(planned(options), 0, [b"a"], attempt=1)


def test_an_earlier_run_cannot_commit_any_more(broker, topic, options, cluster, run_task):
    old = planned(options)
    report = run_task(old, 0, [b"old"], batch=0)
    new = planned(options)
    with pytest.raises(QueryError):
        ExactlyOnceStreamWriter(options, SCHEMA).commit([report], 0)
    ExactlyOnceStreamWriter(options, SCHEMA).commit([run_task(new, 1, [b"new"], batch=0)], 0)
    assert visible(broker, topic, cluster, 4) == 4
    aborted = [
        each.first_offset
        for fetched in cluster.fetch(TopicPartition(topic, 0), 0, 2, read_committed=True)
        for each in fetched.aborted
    ]
    assert aborted == [0]


def refused(options, reports, message):
    with pytest.raises(QueryError, match=message):
        ExactlyOnceStreamWriter(options, SCHEMA).commit(reports, 0)


def is_aborted(cluster, topic, partition=0):
    """Whether the partition's first transaction was aborted; waits for its marker."""
    where = TopicPartition(topic, partition)
    for _ in range(400):
        end = cluster.list_offsets({where: LATEST}, read_committed=True)[where].offset
        if end:
            return any(each.aborted for each in cluster.fetch(where, 0, end, read_committed=True))
    return False


def test_a_missing_report_aborts(topic, options, cluster, run_task):
    refused(options, [run_task(planned(options), 0, [b"a"]), None], "a task did not report what it wrote")
    assert is_aborted(cluster, topic)


def test_a_partition_written_by_two_tasks_aborts(topic, options, cluster, run_task):
    """The second batch has the same sequence numbers and size: the broker takes it for the first and drops it."""
    writer = planned(options)
    reports = [run_task(writer, 0, [b"a"]), run_task(writer, 0, [b"b"])]
    refused(options, reports, f"{topic}-0 was written by 2 tasks")
    assert is_aborted(cluster, topic)


def test_different_batches_of_two_tasks_for_one_partition_fail_the_second_task(options, run_task):
    writer = planned(options)
    run_task(writer, 0, [b"a", b"b"])
    with pytest.raises(QueryError, match=r"was written by two tasks: pass the rows through .*exactly_once last"):
        run_task(writer, 0, [b"c"])


@pytest.mark.parametrize("reported", [1, 3])
def test_another_number_of_records_than_the_leader_has_aborts(topic, options, cluster, run_task, reported):
    report = run_task(planned(options), 0, [b"a", b"b"])
    false = Report(report.identity, QUERY, record_counts={TopicPartition(topic, 0): reported})
    refused(options, [false], f"{topic}-0 does not have the {reported} records")
    assert is_aborted(cluster, topic)


def test_reports_of_two_transactions_abort_both(topic, options, cluster, run_task):
    first = run_task(planned(options), 0, [b"a"])
    second = run_task(planned(options), 1, [b"b"])
    refused(options, [first, second], "did not report")
    assert is_aborted(cluster, topic, 0)
    assert is_aborted(cluster, topic, 1)


def test_tasks_of_which_some_skipped_abort(topic, options, cluster, run_task):
    report = run_task(planned(options), 0, [b"a"])
    refused(options, [report, Report(report.identity, QUERY, is_skipped=True)], "that others found committed")
    assert is_aborted(cluster, topic)


def test_an_abort_of_spark_ends_the_transaction_that_a_task_told_of(topic, options, cluster, run_task):
    report = run_task(planned(options), 0, [b"a"])
    ExactlyOnceStreamWriter(options, SCHEMA).abort([None, report], 0)
    assert is_aborted(cluster, topic)


def test_nothing_written_needs_no_commit(broker, topic, options, cluster):
    writer = planned(options)
    ExactlyOnceStreamWriter(options, SCHEMA).commit([Report(writer._begun.identity, QUERY)], 0)
    ExactlyOnceStreamWriter(options, SCHEMA).commit([], 1)
    assert cluster.stable_offsets(f"flowstone.{topic}") == {}


def test_a_batch_query_has_no_number_and_is_never_skipped(broker, topic, options, cluster, run_task):
    writer = planned(options, ExactlyOnceBatchWriter)
    report = run_task(writer, 0, [b"a"], batch=0)
    writer.commit([report])
    assert cluster.stable_offsets(f"flowstone.{topic}") == {}
    assert not run_task(planned(options, ExactlyOnceBatchWriter), 0, [b"a"], batch=0).is_skipped


def test_a_batch_query_that_failed_is_aborted_even_without_reports(topic, options, cluster, run_task):
    writer = planned(options, ExactlyOnceBatchWriter)
    run_task(writer, 0, [b"a"])
    writer.abort([])
    assert is_aborted(cluster, topic)


def test_the_options_choose_the_writer(options):
    plain = {name: value for name, value in options.items() if name not in ("delivery", "sinkName")}
    assert type(batch_writer(options, SCHEMA, False)) is ExactlyOnceBatchWriter
    assert type(batch_writer(plain, SCHEMA, False)) is FlowstoneWriter
    assert type(stream_writer(options, SCHEMA)) is ExactlyOnceStreamWriter
    assert type(stream_writer(plain, SCHEMA)) is FlowstoneStreamWriter


def test_a_topic_cannot_be_overwritten(options):
    with pytest.raises(Exception, match="a topic can only be appended to"):
        batch_writer(options, SCHEMA, True)
