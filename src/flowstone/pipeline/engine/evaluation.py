"""The rows of all nodes for given rows of sources: in a micro-batch, a test, a diff or a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowstone.pipeline.engine import letters
from flowstone.pipeline.engine.sources import split_errors
from flowstone.pipeline.engine.steps import UNMET, StepRows, apply_step, check_rows, unmet_message
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import Action, PipelineModel, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Evaluation:
    """The rows of nodes by name, and what is needed to count and store the rows that fail."""

    model: PipelineModel
    frames: dict[str, DataFrame] = field(default_factory=dict)
    undecoded: dict[str, DataFrame] = field(default_factory=dict)  # by source
    checked: list[StepRows] = field(default_factory=list)  # steps with expectations

    def add_source(self, name: str, decoded: DataFrame) -> None:
        self.frames[name], failed = split_errors(decoded)
        if failed is not None:
            self.undecoded[name] = failed

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
            if each.diverted is not None and (counts is None or counts.diverted(each.step))
        ]
        return found

    def count(self) -> Counts:
        """Count the rows that fail, in one Spark job. Raises PipelineError if an expectation with FAIL is not met."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        parts = [
            failed.select(F.lit("").alias("step"), F.lit(source).alias("name"))
            for source, failed in self.undecoded.items()
        ]
        for each in self.checked:
            assert each.all_rows is not None
            unmet = each.all_rows.select(F.lit(each.step.name).alias("step"), F.explode(UNMET).alias("name"))
            parts.append(unmet)
        if not parts:
            return Counts({}, {})
        union = parts[0]
        for part in parts[1:]:
            union = union.union(part)
        counts = Counts({}, {})
        for row in union.groupBy("step", "name").count().collect():
            if row["step"]:
                counts.unmet.setdefault(row["step"], {})[row["name"]] = row["count"]
            else:
                counts.undecoded[row["name"]] = row["count"]
        self._refuse_failures(counts)
        return counts

    def _refuse_failures(self, counts: Counts) -> None:
        for each in self.checked:
            for expectation in each.step.expectations:
                found = counts.unmet.get(each.step.name, {}).get(expectation.name, 0)
                if found and expectation.action == Action.FAIL:
                    raise PipelineError(
                        f"{unmet_message(each.step, expectation)}: {found} of this micro-batch, of which nothing was "
                        "written; correct the data or the expectation and start the pipeline again",
                        expectation.declared_at,
                    )


@dataclass(frozen=True)
class Counts:
    """How many rows could not be decoded, by source, and did not meet an expectation, by step and its name."""

    undecoded: dict[str, int]
    unmet: dict[str, dict[str, int]]

    def diverted(self, step: Step) -> int:
        """Return how many times a row of the step did not meet an expectation that diverts."""
        unmet: Mapping[str, int] = self.unmet.get(step.name, {})
        return sum(unmet.get(each.name, 0) for each in step.expectations if each.action == Action.DIVERT)
