"""`PipelineUnderTest`: a pipeline on an embedded broker, for tests of its own: feed rows, run it, read its outputs.

It runs as in production, as streaming queries with checkpoints, transactions and a lease. Its tables and files are in a
directory of the test instead of the declared paths.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowstone.embedded import Broker
from flowstone.pipeline import formats
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.authoring.validation import nearest
from flowstone.pipeline.engine.queries import analysed_frames
from flowstone.pipeline.engine.session import ship
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import (
    ConsoleSink,
    FileSource,
    PipelineModel,
    Row,
    Sink,
    Source,
    TableSink,
    TableSource,
    TopicSource,
)
from flowstone.pipeline.operations.feeding import frame_of, letter_row, produce, written_rows
from flowstone.pipeline.operations.run import Reporter, RunOptions, RunSummary, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


class PipelineUnderTest:
    def __init__(self, directory: Path, broker: Broker, scratch: Path, open_spark: Callable[[], SparkSession]) -> None:
        """Load the pipeline and create the topics that it reads. Raises PipelineError if it is malformed."""
        self.broker, self._scratch, self._open_spark = broker, scratch, open_spark
        self._declared = load(directory)
        scratch.mkdir(parents=True, exist_ok=True)
        self.model: PipelineModel = self._located(self._declared)
        for source in self.model.sources:
            if isinstance(source.origin, TopicSource):
                for topic in source.origin.topics:
                    broker.create_topic(topic, partitions=PARTITIONS)

    @property
    def spark(self) -> SparkSession:
        return self._open_spark()

    def feed(self, source: str, rows: Sequence[Row], *, topic: str = "") -> None:
        """Add rows to a source: records to its topic, rows to its table, or a file to its directory.

        `_key` in a row is a record's key, and `_value` its value as text instead of columns. `topic` is needed if the
        source has several, or a pattern.
        """
        found = self.model.source(source)
        if found is None:
            known = [each.name for each in self.model.sources]
            raise PipelineError(f"there is no source {source}{nearest(source, known)}")
        origin = found.origin
        if isinstance(origin, TopicSource):
            wanted = topic or (origin.topics[0] if len(origin.topics) == 1 else "")
            if not wanted:
                raise PipelineError(f"source {source} reads several topics: say which one with topic=")
            if wanted not in origin.topics:
                self._create(wanted)
            produce(self.spark, self.broker.bootstrap, wanted, origin.value, rows)
        elif isinstance(origin, FileSource):
            frame = frame_of(self.spark, rows, origin.schema or "value string")
            frame.coalesce(1).write.format(origin.kind).options(**origin.options).mode("append").save(origin.path)
        else:
            self._feed_table(found, origin, rows)

    def _feed_table(self, source: Source, origin: TableSource, rows: Sequence[Row]) -> None:
        from flowstone.pipeline import tables

        target = self._scratch_path(source.name)
        if origin.path != target:  # from now on the pipeline reads the fed rows instead of the declared table
            sources = [
                replace(each, origin=replace(origin, path=target, options={})) if each is source else each
                for each in self.model.sources
            ]
            self.model = replace(self.model, sources=tuple(sources))
        frame = self.spark.createDataFrame([dict(each) for each in rows])
        tables.write(frame, TableSink(origin.kind, target), None)

    def run(self) -> RunSummary:
        """Run the pipeline until it has processed everything. Raises PipelineError if it fails."""
        options = RunOptions(once=True, restarts=0, takes_lock=False)
        return run(self.model, options, threading.Event(), Reporter(), lambda *_: self.spark)

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return everything that a topic or table sink has written, as JSON objects, in any order."""
        found = self.model.sink(sink)
        if found is None:
            raise PipelineError(f"there is no sink {sink}{nearest(sink, [each.name for each in self.model.sinks])}")
        if isinstance(found.target, ConsoleSink):
            raise PipelineError(f"sink {sink} is the console, which keeps nothing")
        ship(self.model)
        columns = analysed_frames(self.spark, self.model)[found.input].schema
        if not isinstance(found.target, TableSink):
            self._create(found.target.topic)
        return written_rows(self.spark, self.model, found, columns)

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters, with `key`, `value`, `stage` and `message`, in any order."""
        self._create(self.model.letters_topic)
        records = self.broker.records(self.model.letters_topic, read_committed=True)
        return [letter_row(each.key, each.value, dict(each.headers)) for each in records]

    def _create(self, topic: str) -> None:
        from flowstone.client import Cluster

        with Cluster(self.broker.bootstrap) as cluster:
            if topic not in cluster.topics([topic]):
                self.broker.create_topic(topic, partitions=PARTITIONS)

    def _located(self, model: PipelineModel) -> PipelineModel:
        """Return the model with the broker, and with files and tables in the directory of the test."""

        def source(each: Source) -> Source:
            origin = each.origin
            if isinstance(origin, TopicSource):
                value = formats.for_tests(origin.value, formats.subject_of(*origin.topics), str(self._scratch))
                return replace(each, origin=replace(origin, value=value))
            if not isinstance(origin, FileSource):
                return each
            path = self._scratch_path(each.name)
            Path(path).mkdir(parents=True, exist_ok=True)
            return replace(each, origin=replace(origin, path=path))

        def sink(each: Sink) -> Sink:
            if not isinstance(each.target, TableSink):
                return each
            return replace(each, target=replace(each.target, path=self._scratch_path(each.name), options={}))

        return replace(
            model,
            bootstrap=self.broker.bootstrap,
            checkpoints=str(self._scratch / "checkpoints"),
            sources=tuple(map(source, model.sources)),
            sinks=tuple(map(sink, model.sinks)),
        )

    def _scratch_path(self, name: str) -> str:
        return str(self._scratch / "data" / name)
