"""The sink with `delivery=exactly-once`: one transaction for each micro-batch, or for a batch query.

The process that plans a micro-batch begins the transaction when Spark pickles the writer. The tasks write in it, each
with the transaction's producer id and from sequence number 0, and report how many records each partition got. The
process that commits compares the reports with what the partitions' leaders have, adds the micro-batch's number to the
transaction, as an offset of the sink's group, and commits. Any doubt ends in an abort and an error. Spark then runs the
whole micro-batch again when the query is restarted.

Invariants:
- A transaction is begun before the numbers of committed micro-batches are read, which ends every earlier transaction
  of the sink. Nothing can be committed after that reading but by this transaction.
- A micro-batch whose number was committed is not written again.
- A partition is written by one task, once: a second attempt of a task is refused, and so is a transaction in which two
  tasks wrote to one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from flowstone.client import ClientError, DeliveryFailed, GaveUp, Producer, Refused
from flowstone.client.groups import CommittedOffset
from flowstone.client.transactions import Identity, Transaction
from flowstone.errors import ErrorCode, FlowstoneError
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import SEQUENCE_MAX
from pyspark_flowstone.connections import cluster_of
from pyspark_flowstone.placement import check_placed
from pyspark_flowstone.reporting import reported
from pyspark_flowstone.sink import BATCH_ID, FlowstoneStreamWriter, FlowstoneWriter, RowWriter, write_rows
from pyspark_flowstone.sink_options import APP_ID, SinkOptions, parse_sink_options
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import DataSourceStreamArrowWriter

QUERY_ID = "sql.streaming.queryId"  # set by Spark in the tasks of a micro-batch
NAME_PREFIX = "flowstone."  # of the transactional id and of the group that has the numbers of micro-batches

_PLACE_LAST = "pass the rows through pyspark_flowstone.exactly_once last, and do not repartition them afterwards"


class NotCommitted(FlowstoneError):
    """The transaction was aborted because it could not be shown to be complete. The message is for users."""


@dataclass(frozen=True)
class Report(WriterCommitMessage):
    """The result of one task: the producer and the number of records written to each partition."""

    identity: Identity
    query_id: str
    is_skipped: bool = False  # its micro-batch had been committed before
    record_counts: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Begun:
    identity: Identity
    last_batches: Mapping[str, int]  # the last committed micro-batch of each query, by query id


class ExactlyOnceWriter(RowWriter):
    """The common part of both writers. Spark pickles the planned writer once it has planned a micro-batch."""

    _begun: _Begun | None = None

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check the options and the schema. Raises OptionError if such rows cannot be written."""
        super().__init__(given, schema)
        check_placed(schema)

    @reported
    def __getstate__(self) -> dict[str, Any]:
        if self._begun is None:
            self._begun = self._begin()
        return self.__dict__

    @reported
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task, begun = TaskContext.get(), self._begun
        assert task is not None
        assert begun is not None
        if task.attemptNumber():
            raise NotCommitted(
                "Spark runs a task of an exactly-once write a second time, which is refused: start the query again"
            )
        query_id, batch_id = self._write_id(task)
        if batch_id is not None and batch_id <= begun.last_batches.get(query_id, -1):
            # An earlier run committed it, but ended before it could report that to Spark.
            for _rows in iterator:
                pass
            return Report(begun.identity, query_id, is_skipped=True)
        batches = (rows.select(self._columns) for rows in iterator if rows.num_rows)
        return Report(begun.identity, query_id, record_counts=self._write(batches, begun.identity))

    def _write(self, batches: Iterator[pa.RecordBatch], identity: Identity) -> dict[TopicPartition, int]:
        options, cluster = self._options, cluster_of(self._options.bootstrap)
        producer = Producer(cluster, transaction=cluster.transaction(identity), deadline_s=options.delivery_timeout_s)
        try:
            write_rows(batches, options, cluster, producer, is_one_partition=True)
            return producer.record_counts
        except DeliveryFailed as error:
            if isinstance(error.__cause__, Refused) and error.__cause__.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise NotCommitted(f"{error.partition} was written by two tasks: {_PLACE_LAST}") from error
            raise
        finally:
            producer.close()

    def _write_id(self, task: TaskContext) -> tuple[str, int | None]:
        """Return the query's id and the micro-batch's number; None: it has none and is written in any case."""
        raise NotImplementedError

    def _begin(self) -> _Begun:
        name, options = sink_id(self._options), self._options
        cluster = cluster_of(options.bootstrap)
        transaction = cluster.begin_transaction(name, options.transaction_timeout_ms)
        last_batches: dict[str, int] = {}
        for committed in cluster.stable_offsets(name).values():
            last = last_batches.get(committed.metadata, committed.offset)
            last_batches[committed.metadata] = max(last, committed.offset)
        return _Begun(transaction.identity, last_batches)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """Commit what the tasks wrote, and the number of the micro-batch if it has one.

        Raises NotCommitted after an abort if the reports do not prove that every row was written once.
        """
        reports = [each for each in messages if isinstance(each, Report)]
        try:
            transaction = self._transaction(reports, len(messages))
            counts = _counts(reports)
            if transaction is None or not counts:
                return
            _check_written(transaction, counts)
            if batch_id is not None:
                topic = self._options.topic or min(counts).topic
                last = CommittedOffset(batch_id, reports[0].query_id)
                transaction.commit_offsets(sink_id(self._options), {TopicPartition(topic, 0): last})
        except (ClientError, NotCommitted):
            self._abort(messages)
            raise
        try:
            transaction.commit()
        except GaveUp as error:
            raise GaveUp(
                f"{error}; whether the rows were committed is not known: start the query again, which finds out"
            ) from error

    def _transaction(self, reports: Sequence[Report], task_count: int) -> Transaction | None:
        """Return the transaction of all tasks, or None if their micro-batch had been committed before."""
        identities = {each.identity for each in reports}
        if len(reports) != task_count or len(identities) > 1:
            raise NotCommitted("a task did not report what it wrote, so that the transaction was aborted")
        if any(each.is_skipped for each in reports):
            if not all(each.is_skipped for each in reports):
                raise NotCommitted("some tasks wrote a micro-batch that others found committed: it was aborted")
            return None
        return cluster_of(self._options.bootstrap).transaction(identities.pop()) if identities else None

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transaction, if a task reported it. Otherwise the next run aborts it, or its timeout does."""
        identities = {each.identity for each in messages if isinstance(each, Report)}
        if self._begun is not None:
            identities.add(self._begun.identity)
        for each in identities:
            cluster_of(self._options.bootstrap).transaction(each).abort()


class ExactlyOnceBatchWriter(ExactlyOnceWriter, DataSourceArrowWriter):
    """The writer of a batch query: readers see all of its rows or none.

    A function given to `foreachBatch` numbers its writes with txnAppId and txnVersion; each is then written once.
    """

    def _write_id(self, task: TaskContext) -> tuple[str, int | None]:
        return self._options.numbered or ("", None)

    @reported
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        numbered = self._options.numbered
        self._commit(messages, numbered.version if numbered is not None else None)

    @reported
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class ExactlyOnceStreamWriter(ExactlyOnceWriter, DataSourceStreamArrowWriter):
    """The writer of a streaming query, of which Spark makes one for each micro-batch, and another that commits."""

    def _write_id(self, task: TaskContext) -> tuple[str, int | None]:
        return task.getLocalProperty(QUERY_ID) or "", int(task.getLocalProperty(BATCH_ID) or 0)

    @reported
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._commit(messages, batchId)

    @reported
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._abort(messages)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of a batch query for the delivery that its options ask for."""
    if overwrite or not parse_sink_options(given).is_exactly_once:
        return FlowstoneWriter(given, schema, overwrite)
    return ExactlyOnceBatchWriter(given, schema)


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    """Return the writer of a streaming query for the delivery that its options ask for."""
    options = parse_sink_options(given)
    if options.numbered is not None:
        raise OptionError(
            f"{APP_ID}: it numbers batch writes; leave it out of writeStream, whose micro-batches have ids"
        )
    if not options.is_exactly_once:
        return FlowstoneStreamWriter(given, schema)
    return ExactlyOnceStreamWriter(given, schema)


def sink_id(options: SinkOptions) -> str:
    """Return the name of the sink's transactional id and of its group."""
    return f"{NAME_PREFIX}{options.sink_name}"


def _counts(reports: Sequence[Report]) -> dict[TopicPartition, int]:
    """Return how many records each partition got. Raises NotCommitted if two tasks wrote to one partition."""
    writers = Counter(partition for each in reports for partition in each.record_counts)
    shared = [partition for partition, count in writers.items() if count > 1]
    if shared:
        raise NotCommitted(
            f"{min(shared)} was written by {writers[min(shared)]} tasks, and the transaction was aborted: {_PLACE_LAST}"
        )
    return {partition: count for each in reports for partition, count in each.record_counts.items()}


def _check_written(transaction: Transaction, counts: Mapping[TopicPartition, int]) -> None:
    """Raise NotCommitted unless the last record that each partition has of the transaction is the task's last."""
    written = transaction.written(sorted(counts))
    for partition, count in counts.items():
        found = written.get(partition)
        if found is None or found.last_sequence != (count - 1) & SEQUENCE_MAX:
            raise NotCommitted(
                f"{partition} does not have the {count} records that were written to it, so that the transaction was "
                "aborted: start the query again"
            )
