"""A streaming query that is killed at a chosen step of its second micro-batch: topic to topic, a process of its own.

Run as a program with a `Plan` as JSON. The source and sink are the real ones; a subclass of each looks, at every step,
whether this is the one to die at. It dies once: a mark in the plan's directory tells later runs that it has happened.
With `is_exactly_once` the sink writes in transactions, which have steps of their own.

What dies is `driver`: the JVM, the Python program and the process that is at the step; or `worker`: only the latter.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from flowstone.client.transactions import Transaction
from pyspark_flowstone import DefaultSource, exactly_once
from pyspark_flowstone.exactly_once_sink import ExactlyOnceStreamWriter
from pyspark_flowstone.sink import FlowstoneStreamWriter
from pyspark_flowstone.stream import FlowstoneStreamReader
from pyspark_flowstone.versions.stream_reader import for_this_version
from tests.support.spark.queries import start_available

BATCH_KILLED = 1
ENVIRONMENT = "FLOWSTONE_TEST_KILL"
# The steps of a micro-batch in their order, and whether some of its rows may have been written by then.
STEPS = {
    "planning": False,  # no end is chosen yet
    "planned": False,  # the offsets are in the checkpoint
    "reading": True,  # one Arrow batch of a task is read; what is read is written at the same time
    "writing": True,  # one Arrow batch of a task is handed over
    "written": True,  # a task has written everything, and Spark does not know it yet
    "committing": True,  # every task has, and the checkpoint does not say so yet
    "committed": False,  # the checkpoint says so; the group does not
}
# Those of a micro-batch that is written in a transaction: nothing may come twice, whatever dies.
EXACTLY_ONCE_STEPS = (
    "planned",
    "beginning",  # the transaction of the run before is still open, if it left one
    "begun",
    "reading",
    "writing",
    "written",
    "committing",  # every task has reported
    "marking",  # the leaders have what was reported
    "marked",  # the number of the micro-batch is in the transaction
    "ended",  # the transaction is committed, and the checkpoint does not say so yet
    "committed",
)
VICTIMS = ("driver", "worker")


@dataclass(frozen=True)
class Plan:
    bootstrap: str
    source: str
    sink: str
    group: str
    directory: str
    records_per_batch: int
    step: str = ""  # none: it runs to its end
    victim: str = "driver"
    is_exactly_once: bool = False

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, "checkpoint")

    @property
    def batches_done(self) -> int:
        return len(list((self.checkpoint / "commits").glob("[0-9]*")))

    @property
    def mark(self) -> Path:
        return Path(self.directory, "killed")

    @property
    def driver_pids(self) -> Path:
        return Path(self.directory, "driver-pids")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def current_plan() -> Plan:
    return Plan(**json.loads(os.environ[ENVIRONMENT]))


def reach(step: str, batch: int) -> None:
    """Ends this process, and perhaps the driver, if it is to die here."""
    plan = current_plan()
    if plan.step != step or batch != BATCH_KILLED:
        return
    try:
        plan.mark.touch(exist_ok=False)
    except FileExistsError:
        return
    if plan.victim == "driver":
        for pid in plan.driver_pids.read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def batch_of_task() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or -1)


class KilledReader(FlowstoneStreamReader):
    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802 - Spark's names
        done = current_plan().batches_done
        reach("planning", done)
        reach("committed", done - 1)
        return super().latestOffset(start, limit)

    def first_end(self, limit: Any) -> Any:
        reach("planning", current_plan().batches_done)
        return super().first_end(limit)

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        reach("planned", current_plan().batches_done)
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for rows in super().read(partition):
            yield rows
            reach("reading", batch_of_task())


class KilledWriter(FlowstoneStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(watched(iterator))
        reach("written", batch_of_task())
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("committing", batchId)
        super().commit(messages, batchId)


def watched(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in iterator:
        yield rows
        reach("writing", batch_of_task())


class KilledExactlyOnceWriter(ExactlyOnceStreamWriter):
    def _begin(self) -> Any:
        reach("beginning", current_plan().batches_done)
        begun = super()._begin()
        reach("begun", current_plan().batches_done)
        return begun

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(watched(iterator))
        reach("written", batch_of_task())
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reach("committing", batchId)
        with (
            patch.object(Transaction, "commit_offsets", reaching("marking", batchId, Transaction.commit_offsets)),
            patch.object(Transaction, "commit", reaching("marked", batchId, Transaction.commit)),
        ):
            super().commit(messages, batchId)
        reach("ended", batchId)


def reaching(step: str, batch: int, method: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        reach(step, batch)
        method(*arguments)

    return call


class KilledSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return for_this_version(KilledReader(self._source_options()))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if current_plan().is_exactly_once:
            return KilledExactlyOnceWriter(self.options, schema)
        return KilledWriter(self.options, schema)


def main(plan: Plan) -> None:
    os.environ[ENVIRONMENT] = plan.to_json()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task is tried four times
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.stage.maxConsecutiveAttempts", "1")
        .getOrCreate()
    )
    plan.driver_pids.write_text(f"{spark.sparkContext._gateway.proc.pid} {os.getpid()}")  # type: ignore[union-attr]
    spark.dataSource.register(KilledSource)
    rows = (
        spark.readStream.format("killed")
        .option("kafka.bootstrap.servers", plan.bootstrap)
        .option("subscribe", plan.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", plan.records_per_batch)
        .option("groupId", plan.group)
        .load()
    )
    rows = rows.selectExpr("key", "concat(partition, ':', offset) value")
    options = {"kafka.bootstrap.servers": plan.bootstrap, "topic": plan.sink}
    if plan.is_exactly_once:
        rows = exactly_once(rows, bootstrap=plan.bootstrap, topic=plan.sink)
        options |= {"delivery": "exactly-once", "sinkName": plan.sink}
    writer = rows.writeStream.format("killed").options(**options)
    query = start_available(writer.option("checkpointLocation", str(plan.checkpoint)))
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
