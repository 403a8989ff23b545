"""The sink: writes the rows of a batch query or micro-batch, as Arrow batches, to topics.

The driver checks options, columns and the topic before a task writes; it creates a missing topic if the broker permits
it. A task builds record batches, passes them to an idempotent producer, and finishes when the cluster has stored all of
them. Nothing waits for the driver's commit: a failed task, or a micro-batch that was not recorded as finished, is run
again and writes its rows again. Delivery is therefore at least once; within one run of a task, the producer's sequence
numbers prevent duplicates by retries.

`exactly_once_sink` encloses `write_rows`, the only place where records reach a producer, in a transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from flowstone.arrow.encode import Encoder
from flowstone.client import BadAddress, BadAnswer, Cluster, GaveUp, Producer
from flowstone.client.topics import AUTO_CREATE
from pyspark_flowstone.connections import CLIENT_ID, settle_process
from pyspark_flowstone.positions import unreachable
from pyspark_flowstone.reporting import reported
from pyspark_flowstone.sink_options import SinkOptions, columns_written, parse_sink_options
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import DataSourceStreamArrowWriter

BATCH_ID = "streaming.sql.batchId"  # set by Spark in the tasks of a micro-batch


class RowWriter:
    """The common part of batch and streaming writers: created on the driver, pickled, and run by the tasks."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check the options and the schema. Raises OptionError if such rows cannot be written."""
        self._options = parse_sink_options(given)
        self._columns = columns_written(schema, self._options.topic)
        if self._options.topic is not None:
            _check_topic(self._options.bootstrap, self._options.topic, self._options.connect_timeout_s)

    @reported
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = (rows.select(self._columns) for rows in iterator if rows.num_rows)
        first = next(batches, None)
        if first is not None:  # a task without rows, which is common after a shuffle, sends no request
            with _producer(self._options) as (cluster, producer):
                write_rows(chain([first], batches), self._options, cluster, producer)
        return WriterCommitMessage()


class FlowstoneWriter(RowWriter, DataSourceArrowWriter):
    """The writer of batch queries, `df.write.format("flowstone")`."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a topic can only be appended to: use mode("append") instead of mode("overwrite")')
        super().__init__(given, schema)


class FlowstoneStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """The writer of streaming queries. In complete mode each micro-batch appends the whole result."""


def write_rows(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    cluster: Cluster,
    producer: Producer,
    *,
    is_one_partition: bool = False,
) -> None:
    """Write all rows and return when they are stored.

    With `is_one_partition` all rows of a topic that have neither a key nor a partition go to one partition, which is
    another one in each task. Raises ClientError, or an error that names the row, if a row cannot be written.
    """
    encoder = Encoder(
        compression=options.compression,
        batch_bytes_max=options.record_bytes_max,
        now_ms=time.time_ns() // 1_000_000,
        first_partition=_first_partition(),
        is_one_partition=is_one_partition,
    )
    counts: dict[str, int] = {}
    for rows in batches:
        _learn_counts(counts, rows, options.topic, cluster)
        for encoded in encoder.encode(rows, counts, options.topic):
            producer.send(encoded.partition, encoded.batch, encoded.record_count)
    producer.flush()


def _learn_counts(counts: dict[str, int], rows: pa.RecordBatch, topic: str | None, cluster: Cluster) -> None:
    """Look up the number of partitions of each topic in the rows, once per task, so that new partitions are used."""
    topics = [topic] if topic is not None else pc.unique(rows.column("topic")).to_pylist()
    unknown = [each for each in topics if each is not None and each not in counts]
    if unknown:
        counts |= cluster.ensure_topics(unknown)
        for each in unknown:
            if each not in counts:
                raise _no_such_topic(each)


def _first_partition() -> int:
    """Return the first partition for rows without a key, which differs between the tasks of a micro-batch.

    A task that is run again begins where it did before.
    """
    task = TaskContext.get()
    assert task is not None
    return task.partitionId() + int(task.getLocalProperty(BATCH_ID) or 0)


@cache
def _check_topic(bootstrap: str, topic: str, deadline_s: float) -> None:
    """Create the topic if it is missing. Raises OptionError if the broker does not answer, or does not create it.

    Done once in each process of the driver, which makes a writer for every micro-batch.
    """
    settle_process()
    try:
        with Cluster(bootstrap, client_id=CLIENT_ID, deadline_s=deadline_s) as cluster:
            counts = cluster.ensure_topics([topic])
    except (GaveUp, BadAnswer, BadAddress) as error:
        raise unreachable(error) from error
    if topic not in counts:
        raise _no_such_topic(topic)


def _no_such_topic(topic: str) -> OptionError:
    return OptionError(
        f"topic: there is no topic {topic}, and the broker did not create it (see its setting {AUTO_CREATE}); "
        f"create it with `flowstone topic create {topic}`"
    )


# A worker's next task reuses the producer of a successful task. Each new one costs the brokers a producer id
# that they keep for a day, and queries have many small tasks. By process id: a fork must not use its parent's sockets.
_producers: dict[tuple[int, SinkOptions], tuple[Cluster, Producer]] = {}


@contextmanager
def _producer(options: SinkOptions) -> Iterator[tuple[Cluster, Producer]]:
    """Yield this process's producer, which is kept for the next task.

    If the task fails, the producer is closed, because it may contain unsent records of that task.
    """
    key = os.getpid(), options
    cluster, producer = _producers.pop(key) if key in _producers else _open_producer(options)
    try:
        yield cluster, producer
    except BaseException:
        producer.close()
        cluster.close()
        raise
    _producers[key] = cluster, producer


def _open_producer(options: SinkOptions) -> tuple[Cluster, Producer]:
    settle_process()
    cluster = Cluster(options.bootstrap, client_id=CLIENT_ID)
    return cluster, Producer(
        cluster, acks=options.acks, idempotent=options.idempotent, deadline_s=options.delivery_timeout_s
    )
