"""`test`: the cases of a pipeline on a broker of their own: rows in, and the rows of steps, sinks and letters out.

A case writes its rows to topics of an embedded broker, reads them back as the pipeline would, as one batch, and applies
the steps. Sinks that it has expectations for are written and read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowstone.embedded import Broker
from flowstone.pipeline import formats
from flowstone.pipeline.authoring.validation import LETTERS
from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.outputs import MicroBatchId, part_of, write_records, write_table
from flowstone.pipeline.engine.session import ship
from flowstone.pipeline.engine.sources import Range, read_batch
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import (
    Case,
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
from flowstone.pipeline.operations.rows import Comparison, collect, compare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2


@dataclass(frozen=True)
class CaseResult:
    case: Case
    comparisons: Mapping[str, Comparison]  # by node

    @property
    def is_passed(self) -> bool:
        return all(each.is_equal for each in self.comparisons.values())


def run_cases(
    open_spark: Callable[[], SparkSession], model: PipelineModel, names: Sequence[str] = ()
) -> Iterator[CaseResult]:
    """Run the cases with these names, or all, and yield their results. Raises PipelineError if a case cannot run."""
    if not model.cases:
        raise PipelineError(f"pipeline {model.name} declares no test; add one with `pipeline.case(...)`")
    unknown = set(names) - {each.name for each in model.cases}
    if unknown:
        raise PipelineError(
            f"there is no test {min(unknown)}; there are {', '.join(each.name for each in model.cases)}"
        )
    spark = open_spark()
    ship(model)
    for case in model.cases:
        if names and case.name not in names:
            continue
        with Broker(settings={"num.partitions": PARTITIONS}) as broker, tempfile.TemporaryDirectory() as directory:
            yield _CaseRun(spark, model, case, broker, Path(directory)).run()


class _CaseRun:
    def __init__(self, spark: SparkSession, model: PipelineModel, case: Case, broker: Broker, directory: Path) -> None:
        self._spark, self._case, self._broker, self._directory = spark, case, broker, directory
        self._model = replace(model, bootstrap=broker.bootstrap, checkpoints=str(directory / "checkpoints"))

    def run(self) -> CaseResult:
        evaluation = Evaluation(self._model)
        for source in self._model.sources:
            evaluation.add_source(source.name, self._rows(source))
        evaluation.add_steps(self._spark, self._model.steps)
        evaluation.count()  # fails for an expectation that fails the pipeline
        found = {name: self._found(name, evaluation) for name in self._case.expected}
        return CaseResult(self._case, {name: compare(rows, found[name]) for name, rows in self._case.expected.items()})

    def _rows(self, source: Source) -> DataFrame:
        given = self._case.given.get(source.name, ())
        if isinstance(source.origin, TopicSource):
            topic = source.origin.topics[0] if source.origin.topics else f"{source.name}-of-a-test"
            self._broker.create_topic(topic, partitions=PARTITIONS)
            subject = formats.subject_of(*source.origin.topics)
            format = formats.for_tests(source.origin.value, subject, str(self._directory))
            produce(self._spark, self._broker.bootstrap, topic, format, given)
            alone = replace(source, origin=replace(source.origin, topics=(topic,), pattern="", value=format))
            return read_batch(self._spark, self._model, alone, Range())
        return self._table(source, given)

    def _table(self, source: Source, given: Sequence[Row]) -> DataFrame:
        origin = source.origin
        if isinstance(origin, FileSource):
            return frame_of(self._spark, given, origin.schema or "value string")
        assert isinstance(origin, TableSource)
        try:
            schema = read_batch(self._spark, self._model, source, Range()).schema
        except Exception:  # the table need not exist for a test
            if not given:
                raise PipelineError(
                    f"test {self._case.name}: {source.name} has no rows, and there is no table to take columns from",
                    self._case.declared_at,
                ) from None
            return self._spark.createDataFrame([dict(row) for row in given])
        return frame_of(self._spark, given, schema)

    def _found(self, name: str, evaluation: Evaluation) -> list[dict[str, Any]]:
        sink = self._model.sink(name)
        if sink is not None:
            return self._written(sink, evaluation.frames[sink.input])
        if name in evaluation.frames:
            return collect(evaluation.frames[name])
        assert name == LETTERS, name
        return [_letter(row) for part in evaluation.letters() for row in part.collect()]

    def _written(self, sink: Sink, rows: DataFrame) -> list[dict[str, Any]]:
        """Write the rows of a sink and return what can be read there."""
        target, columns = sink.target, rows.schema
        if isinstance(target, ConsoleSink):
            return collect(rows)
        if isinstance(target, TableSink):
            sink = replace(sink, target=replace(target, path=str(self._directory / sink.name), options={}))
            write_table(sink, rows, MicroBatchId(self._model.name, self._case.name, 0, {}))
        else:
            self._broker.create_topic(target.topic, partitions=PARTITIONS)
            batch = MicroBatchId(f"{self._model.name}.{sink.name}", self._case.name, 0, {})
            write_records(self._model, [part_of(sink, rows)], batch)
        return written_rows(self._spark, self._model, sink, columns)


def _letter(row: Any) -> dict[str, Any]:
    return letter_row(row["key"], row["value"], {header["key"]: header["value"] for header in row["headers"]})
