"""The rows of all nodes for given rows of sources: in a micro-batch, a test, a diff or a backfill.

Rows carry their record in the column RECORD from the source to the outputs, which mostly drop it. A micro-batch is kept
in memory for all outputs, and the record is the larger part of a row. Spark's optimizer knows which columns the outputs
need, so it is asked, with a stand-in for the rows (`are_records_needed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.engine import letters
from flowstone.pipeline.engine.counting import Counts, count
from flowstone.pipeline.engine.sources import split_errors
from flowstone.pipeline.engine.steps import StepRows, apply_step, check_rows, unmet_message
from flowstone.pipeline.engine.unions import no_rows
from flowstone.pipeline.errors import ExpectationFailed
from flowstone.pipeline.model import ERROR, RECORD, Action, PipelineModel, Sink, Step, TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_UNEXPECTED = (
    "the column _record of good rows is used, and was not when the query started: a step returns another plan than "
    "before; start the pipeline again"
)


@dataclass
class Evaluation:
    """The rows of nodes by name, and what is needed to count and store the rows that fail."""

    model: PipelineModel
    frames: dict[str, DataFrame] = field(default_factory=dict)
    decoded: dict[str, DataFrame] = field(default_factory=dict)  # rows with ERROR, by source
    undecoded: dict[str, DataFrame] = field(default_factory=dict)  # by source
    checked: list[StepRows] = field(default_factory=list)  # steps with expectations

    def add_source(self, name: str, decoded: DataFrame, *, has_records: bool = True) -> None:
        """Add the rows of a source. Without records, good rows have lost RECORD, and using it fails."""
        self.frames[name], failed = split_errors(decoded)
        if not has_records:
            self.frames[name] = refused(self.frames[name])
        if failed is not None:
            self.decoded[name], self.undecoded[name] = decoded, failed

    def add_absent(self, spark: SparkSession, absent: Mapping[str, StructType]) -> None:
        """Add nodes of which there are no rows, or none any more."""
        self.frames |= {name: no_rows(spark, schema) for name, schema in absent.items()}

    def add_steps(self, spark: SparkSession, steps: Iterable[Step]) -> None:
        """Apply the steps, whose inputs must be there. Raises PipelineError if Spark cannot analyse one."""
        for step in steps:
            self.add_step_rows(step, apply_step(spark, step, self.frames))

    def add_step_rows(self, step: Step, rows: DataFrame) -> None:
        checked = check_rows(step, rows)
        self.frames[step.name] = checked.rows
        if checked.all_rows is not None:
            self.checked.append(checked)

    def letters(self, counts: Counts | None = None) -> list[DataFrame]:
        """Return the dead letters of each node that has some; without counts, of each that may have some."""
        model, topic = self.model, self.model.letters_topic
        found = [
            letters.undecoded(failed, model.name, source, topic)
            for source, failed in self.undecoded.items()
            if counts is None or counts.undecoded.get(source)
        ]
        found += [
            letters.diverted(each.diverted, model.name, each.step, topic)
            for each in self.checked
            if each.diverted is not None and (counts is None or counts.diverted.get(each.step.name))
        ]
        return found

    def count(self, more: Mapping[str, DataFrame] | None = None) -> Counts:
        """Count the rows that fail, and those of `more`. Raises ExpectationFailed as `check` does."""
        counts = self.check(more or {})
        counts.complete()
        return counts

    def check(self, more: Mapping[str, DataFrame]) -> Counts:
        """Count the rows that fail, and those of `more` of which the number follows from them.

        Raises ExpectationFailed if an expectation that fails the pipeline is not met.
        """
        counts = count(self.decoded, self.frames, self.checked, more)
        self._refuse_failures(counts)
        if not self.decoded and not self.checked:  # nothing was read yet, and it is to be read by one job
            counts.complete()
        return counts

    def _refuse_failures(self, counts: Counts) -> None:
        for each in self.checked:
            for expectation in each.step.expectations:
                found = counts.unmet.get(each.step.name, {}).get(expectation.name, 0)
                if found and expectation.action == Action.FAIL:
                    raise ExpectationFailed(
                        f"{unmet_message(each.step, expectation)}: {found} of this micro-batch, of which nothing was "
                        "written; correct the data or the expectation and start the pipeline again",
                        expectation.declared_at,
                    )


def stand_in(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame with these columns that the optimizer does not recognize as empty."""
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession  # PySpark would start a job for its own rows
    rows = spark.sparkContext._jsc.emptyRDD()
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)


def are_records_needed(evaluation: Evaluation, sinks: tuple[Sink, ...], given: DataFrame) -> bool:
    """Return whether an output of the evaluation, whose source is the stand-in `given`, uses RECORD of good rows."""
    source = given._jdf.queryExecution().analyzed().rdd().id()
    return any(_uses_record(each, source) for each in _outputs(evaluation, sinks))


def _outputs(evaluation: Evaluation, sinks: tuple[Sink, ...]) -> Iterator[DataFrame]:
    for sink in sinks:
        rows = evaluation.frames[sink.input]
        # An upsert finds the last of several rows by the record's offset.
        is_ordered = isinstance(sink.target, TableSink) and sink.target.keys
        yield rows if is_ordered else rows.drop(RECORD)
    for each in evaluation.checked:
        if each.diverted is not None:
            yield each.diverted


def _uses_record(rows: DataFrame, source: int) -> bool:
    if RECORD in rows.columns:
        return True
    for operator in _operators(rows._jdf.queryExecution().optimizedPlan()):
        if operator.children().size():
            is_used = f"{RECORD}#" in operator.references().mkString(" ")
        else:
            # A step may have rows computed by itself, with all their columns.
            is_source = operator.nodeName() == "LogicalRDD" and operator.rdd().id() == source
            is_used = not is_source and f"{RECORD}#" in operator.output().mkString(" ")
        if is_used:
            return True
    return False


def _operators(plan: Any) -> Iterator[Any]:
    """Yield a plan's operators, with those of the subqueries in its expressions."""
    yield plan
    for plans in (plan.children(), plan.subqueries()):
        for number in range(plans.size()):
            yield from _operators(plans.apply(number))


def without_records(rows: DataFrame) -> DataFrame:
    """Return the rows with RECORD only where there is an ERROR."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return rows.withColumn(RECORD, F.when(F.col(ERROR).isNotNull(), F.col(RECORD)))


def refused(rows: DataFrame) -> DataFrame:
    """Return the rows with a RECORD that fails the query if it is used after all, rather than being NULL."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return rows.withColumn(RECORD, F.raise_error(F.lit(_UNEXPECTED)).cast(rows.schema[RECORD].dataType))
