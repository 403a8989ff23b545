"""Random histories of an exactly-once query: micro-batches whose driver or tasks die at any step, on a real broker.

Spark is played here: it plans a micro-batch, runs its tasks, commits, and runs the micro-batch again if its checkpoint
does not have it as finished. Every attempt of a task writes rows of its own, so rows that are visible tell which
attempt wrote them: they must be those of the attempts that Spark took, of each micro-batch, once.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from flowstone import read
from flowstone.client import Cluster
from pyspark_flowstone import exactly_once_sink, sink
from pyspark_flowstone.exactly_once_sink import ExactlyOnceStreamWriter, Report
from pyspark_flowstone.placement import MARK
from pyspark_flowstone.reporting import QueryError

SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("partition", IntegerType(), True, {MARK: True}),
    ]
)
PARTITIONS = 2
BATCHES = 6
RUNS_MAX = 60
# Where the driver dies, and what else happens to a run of a micro-batch; None: nothing.
FAULTS = (
    None,
    None,
    "driver dies after it has begun",
    "driver dies between two tasks",
    "driver dies before it commits",
    "driver dies before it commits, which it does later",
    "driver dies before Spark notes the commit",
    "task is run a second time",
    "stage is run again beside its old tasks",
    "checkpoint is deleted",
)
Batch = tuple[str, int]  # query and number


class History:
    def __init__(
        self, bootstrap: str, topic: str, seed: int, disturb: Callable[[Random], None] = lambda chance: None
    ) -> None:
        """Prepare a history; `disturb` is called before each step of a run, and may do something to the brokers."""
        self._bootstrap, self._topic, self._chance = bootstrap, topic, Random(seed)
        self._disturb = lambda: disturb(self._chance)
        self._options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "delivery": "exactly-once",
            "sinkName": topic,
        }
        self._checkpoint, self._done, self._attempts = 0, 0, 0  # the query's number, its micro-batches, all attempts
        self._late: Callable[[], None] | None = None  # a commit of a driver that was taken for dead
        self._taken: dict[Batch, list[Counter[str]]] = {}  # what Spark took, in each run that came to its commit
        self._finished: set[Batch] = set()
        self.kills = 0

    def run(self) -> None:
        """Run until all micro-batches are done, and compare. Raises AssertionError if readers see something else."""
        for _ in range(RUNS_MAX):
            fault = self._chance.choice(FAULTS)
            with suppress(QueryError):  # ends the query, which is started again
                self._run_batch(fault)
            if self._done == BATCHES:
                break
        else:
            raise AssertionError(f"the query did not come to its end in {RUNS_MAX} runs")
        self._plan()  # as the next micro-batch does; it ends what is still open
        self._compare()

    def _run_batch(self, fault: str | None) -> None:
        self.kills += fault is not None
        batch = f"q{self._checkpoint}", self._done
        self._disturb()
        writer = self._plan()
        if fault == "driver dies after it has begun":
            return
        reports, taken = [], Counter[str]()
        for partition in range(PARTITIONS):
            self._disturb()
            if fault == "task is run a second time" and partition == 0:
                self._task(writer, batch, partition, sizes=(2,))
                report, values = self._task(writer, batch, partition, sizes=(2,), attempt=1)
            else:
                report, values = self._task(writer, batch, partition, sizes=(2,))
            if fault == "driver dies between two tasks":
                return
            reports.append(report)
            taken += values
        if fault == "stage is run again beside its old tasks":
            with suppress(QueryError):
                self._task(writer, batch, 0, sizes=(2, 1))
        if not all(each.is_skipped for each in reports):
            self._taken.setdefault(batch, []).append(taken)
        self._end(fault, batch, reports)

    def _end(self, fault: str | None, batch: Batch, reports: list[Report]) -> None:
        if fault == "driver dies before it commits":
            return
        committing = ExactlyOnceStreamWriter(self._options, SCHEMA)  # Spark makes another writer to commit
        if fault == "driver dies before it commits, which it does later":
            self._late = lambda: committing.commit(reports, batch[1])
            return
        self._disturb()
        committing.commit(reports, batch[1])
        if fault == "driver dies before Spark notes the commit":
            return
        self._finished.add(batch)
        self._done += 1
        if fault == "checkpoint is deleted" and not self._checkpoint and self._done < BATCHES:
            self._checkpoint, self._done = 1, 0

    def _plan(self) -> ExactlyOnceStreamWriter:
        """Return the writer as the tasks get it. A late commit comes just before the transaction begins."""
        late, self._late = self._late, None
        real = Cluster.begin_transaction

        def begin(cluster: Cluster, *given: object) -> object:
            if late is not None:
                with suppress(QueryError):
                    late()
            return real(cluster, *given)  # type: ignore[arg-type]

        with mock.patch.object(Cluster, "begin_transaction", begin):
            return pickle.loads(pickle.dumps(ExactlyOnceStreamWriter(self._options, SCHEMA)))

    def _task(
        self, writer: ExactlyOnceStreamWriter, batch: Batch, partition: int, *, sizes: tuple[int, ...], attempt: int = 0
    ) -> tuple[Report, Counter[str]]:
        """Run an attempt of a task, with as many rows in each of its Arrow batches, and return what it wrote."""
        query, number = batch
        self._attempts += 1
        properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}
        task = SimpleNamespace(
            attemptNumber=lambda: attempt, partitionId=lambda: partition, getLocalProperty=properties.get
        )
        values = [[f"{query}:{number}:{self._attempts}:{at}:{row}" for row in range(n)] for at, n in enumerate(sizes)]
        rows = [
            pa.RecordBatch.from_pydict(
                {
                    "key": pa.nulls(len(each), pa.string()),
                    "value": pa.array([value.encode() for value in each], pa.binary()),
                    "partition": pa.array([partition] * len(each), pa.int32()),
                }
            )
            for each in values
        ]
        context = SimpleNamespace(get=lambda: task)
        with (
            mock.patch.object(exactly_once_sink, "TaskContext", context),
            mock.patch.object(sink, "TaskContext", context),
        ):
            report = pickle.loads(pickle.dumps(writer)).write(iter(rows))
        return report, Counter(value for each in values for value in each)

    def _compare(self) -> None:
        visible: dict[Batch, Counter[str]] = {}
        table = read(self._topic, read_committed=True, bootstrap=self._bootstrap, columns=["value"])
        for each in table.column("value").to_pylist():
            value = each.decode()
            query, number, *_ = value.split(":")
            visible.setdefault((query, int(number)), Counter())[value] += 1
        missing = self._finished - visible.keys()
        assert not missing, f"lost: {sorted(missing)}"
        for batch, values in visible.items():
            assert values in self._taken.get(batch, []), f"{batch}: visible is {dict(values)}, not what one run wrote"
