"""The rows of all nodes for given rows of sources: in a micro-batch, a test, a diff or a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowstone.pipeline.engine import letters
from flowstone.pipeline.engine.counting import Counts, count
from flowstone.pipeline.engine.sources import split_errors
from flowstone.pipeline.engine.steps import StepRows, apply_step, check_rows, unmet_message
from flowstone.pipeline.errors import ExpectationFailed
from flowstone.pipeline.model import Action, PipelineModel, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Evaluation:
    """The rows of nodes by name, and what is needed to count and store the rows that fail."""

    model: PipelineModel
    frames: dict[str, DataFrame] = field(default_factory=dict)
    decoded: dict[str, DataFrame] = field(default_factory=dict)  # rows with ERROR, by source
    undecoded: dict[str, DataFrame] = field(default_factory=dict)  # by source
    checked: list[StepRows] = field(default_factory=list)  # steps with expectations

    def add_source(self, name: str, decoded: DataFrame) -> None:
        self.frames[name], failed = split_errors(decoded)
        if failed is not None:
            self.decoded[name], self.undecoded[name] = decoded, failed

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
        """Count the rows that fail, and those of `more`, in one Spark job.

        Raises ExpectationFailed if an expectation that fails the pipeline is not met.
        """
        counts = count(self.decoded, self.frames, self.checked, more or {})
        self._refuse_failures(counts)
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
