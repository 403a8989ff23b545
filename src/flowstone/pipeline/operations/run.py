"""`run`: runs a pipeline under its lease until it has ended, failed or is stopped, with its state on the broker.

The order matters: the lease first, so that no other run changes the state; then the start positions and checkpoints,
which are stored before the first micro-batch; then the queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowstone.pipeline.engine import checkpoints
from flowstone.pipeline.engine.declaring import declaration, spec_hash
from flowstone.pipeline.engine.queries import Query, plan_queries
from flowstone.pipeline.engine.running import BatchReport, Start
from flowstone.pipeline.engine.session import DEFAULT_MASTER, has_ended, open_session, ship
from flowstone.pipeline.engine.sources import Range
from flowstone.pipeline.engine.starting import start_positions
from flowstone.pipeline.engine.supervisor import RESTARTS_DEFAULT, Supervisor, describe
from flowstone.pipeline.errors import PipelineError, TryLater
from flowstone.pipeline.model import PipelineModel, Trigger, TriggerKind
from flowstone.pipeline.state import Run, StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDED, STOPPED = "ended", "stopped"
CONNECT_DEADLINE_S = 15.0


@dataclass(frozen=True)
class RunOptions:
    once: bool = False
    master: str = ""
    restarts: int = RESTARTS_DEFAULT
    connect_deadline_s: float = CONNECT_DEADLINE_S  # for how long the broker is tried at the start
    takes_lock: bool = True  # the file in the pipeline's directory, besides the lease on the broker


@dataclass
class RunSummary:
    """The result of a run, summed over its micro-batches."""

    reason: str = ENDED
    batches: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)  # by sink
    letters: int = 0

    def add(self, report: BatchReport) -> None:
        self.batches += 1
        self.rows_in += report.rows_in
        self.letters += report.counts.letters
        for name, count in report.rows_out.items():
            self.rows_out[name] = self.rows_out.get(name, 0) + count


@dataclass
class Reporter:
    """Receiver of a run's reports, which come from threads of the run."""

    on_start: Callable[[Sequence[Query]], None] = lambda queries: None
    on_batch: Callable[[BatchReport], None] = lambda report: None
    on_failure: Callable[[str, str, float | None], None] = lambda query, message, restart_in_s: None


def run(
    model: PipelineModel,
    options: RunOptions,
    stopping: threading.Event,
    reporter: Reporter,
    open_spark: Callable[[PipelineModel, str], SparkSession] = open_session,
) -> RunSummary:
    """Run the pipeline until `stopping` is set, or with `once` until it has processed the available records.

    Raises TryLater if it may work later as it is, and PipelineError if it cannot run as it is declared.
    """
    master = options.master or model.master or DEFAULT_MASTER
    with StateStore(model.bootstrap, model.name, deadline_s=options.connect_deadline_s) as store:
        directory = model.directory if options.takes_lock else None
        state_run = store.begin_run(directory, spec_hash=spec_hash(model), master=master)
        reason = "failed"
        try:
            summary = _Session(model, options, stopping, reporter, store, state_run).run(open_spark)
            reason = summary.reason
            return summary
        except BaseException as error:
            reason = describe(error)
            raise
        finally:
            state_run.end(reason)


class _Session:
    def __init__(
        self,
        model: PipelineModel,
        options: RunOptions,
        stopping: threading.Event,
        reporter: Reporter,
        store: StateStore,
        run: Run,
    ) -> None:
        self._model, self._options, self._stopping = model, options, stopping
        self._reporter, self._store, self._run = reporter, store, run
        self._summary = RunSummary()
        self._guard = threading.Lock()  # queries report from threads of their own
        self._lost: PipelineError | None = None
        run.on_lost = self._lose

    def run(self, open_spark: Callable[[PipelineModel, str], SparkSession]) -> RunSummary:
        spark = open_spark(self._model, self._options.master)
        ship(self._model)
        queries = plan_queries(spark, self._model, self._store.load().query_names)
        starts = prepare(spark, self._model, queries, self._store)
        self._store.store_declaration(declaration(self._model, queries))
        self._run.check()
        trigger = Trigger(TriggerKind.ONCE) if self._options.once else self._model.trigger
        self._reporter.on_start(queries)
        supervisor = Supervisor(
            spark,
            self._model,
            trigger,
            queries,
            starts,
            restarts=self._options.restarts,
            on_batch=self._finished,
            on_failure=self._failed,
            stopping=self._stopping,
        )
        try:
            supervisor.run()
        except Exception as error:
            if not has_ended(spark):
                raise
            # A supervisor of processes may end Spark's together with this one, which is a stop like any other.
            if not self._stopping.is_set():
                raise TryLater(
                    f"Spark's process has ended ({describe(error)}); check whether it had enough memory"
                ) from error
        if self._lost is not None:
            raise self._lost
        if self._stopping.is_set():
            self._summary.reason = STOPPED
        return self._summary

    def _lose(self, error: PipelineError) -> None:
        self._lost = error
        self._stopping.set()

    def _finished(self, report: BatchReport) -> None:
        counts = report.counts
        with self._guard:
            self._summary.add(report)
        self._run.record_batch(
            report.query,
            report.number,
            report.rows_in,
            report.rows_out,
            counts.letters,
            counts.failed,
            round(report.seconds * 1000),
        )
        self._reporter.on_batch(report)

    def _failed(self, query: str, message: str, restart_in_s: float | None) -> None:
        self._run.record_error(query, message, -1.0 if restart_in_s is None else restart_in_s)
        self._reporter.on_failure(query, message, restart_in_s)


def prepare(
    spark: SparkSession, model: PipelineModel, queries: Sequence[Query], store: StateStore
) -> Mapping[str, Start]:
    """Return where each query starts, after storing it. Raises PipelineError if a checkpoint cannot be used."""
    starts = {}
    for query in queries:
        stored = store.positions(query.name)
        positions = start_positions(model, query.sources, stored)
        if positions != stored:
            store.store_positions(query.name, positions)
        checkpoint = store.checkpoint(query.name, model.checkpoint_root)
        progress = store.load().progress.get(query.name)
        has_run = progress is not None and progress.at_ms >= checkpoint.since_ms
        checkpoints.take(spark, checkpoint.path, model.name, query.name, checkpoint.id, has_run=has_run)
        ranges = {source: Range(starting=text, group=query.name) for source, text in positions.items()}
        starts[query.name] = Start(checkpoint.path, ranges)
    return starts
