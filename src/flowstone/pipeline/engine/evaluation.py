"""The rows of all nodes for given rows of sources: in a micro-batch, a test, a diff or a backfill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from flowstone.pipeline.engine import letters
from flowstone.pipeline.engine.sources import split_errors
from flowstone.pipeline.engine.steps import UNMET, StepRows, apply_step, check_rows, unmet_message
from flowstone.pipeline.errors import ExpectationFailed
from flowstone.pipeline.model import Action, PipelineModel, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


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
            if each.diverted is not None and (counts is None or counts.diverted.get(each.step.name))
        ]
        return found

    def count(self, more: Mapping[str, DataFrame] | None = None) -> Counts:
        """Count the rows that fail, and those of `more`, in one Spark job.

        Raises ExpectationFailed if an expectation that fails the pipeline is not met.
        """
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        def part(rows: DataFrame, kind: str, node: str, name: Column | None = None) -> DataFrame:
            named = F.lit("") if name is None else name
            return rows.select(F.lit(kind).alias("kind"), F.lit(node).alias("node"), named.alias("name"))

        parts = [part(failed, "undecoded", source) for source, failed in self.undecoded.items()]
        parts += [part(rows, "rows", name) for name, rows in (more or {}).items()]
        for each in self.checked:
            assert each.all_rows is not None
            parts.append(part(each.all_rows, "unmet", each.step.name, F.explode(UNMET)))
            if each.diverted is not None:
                parts.append(part(each.diverted, "diverted", each.step.name))
        counts = Counts()
        if not parts:
            return counts
        for row in reduce(lambda one, other: one.union(other), parts).groupBy("kind", "node", "name").count().collect():
            if row["kind"] == "unmet":
                counts.unmet.setdefault(row["node"], {})[row["name"]] = row["count"]
            else:
                getattr(counts, row["kind"])[row["node"]] = row["count"]
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


@dataclass(frozen=True)
class Counts:
    """Numbers of rows, each by node."""

    undecoded: dict[str, int] = field(default_factory=dict)  # by source
    unmet: dict[str, dict[str, int]] = field(default_factory=dict)  # by step and expectation
    diverted: dict[str, int] = field(default_factory=dict)  # by step
    rows: dict[str, int] = field(default_factory=dict)  # of the further rows that were counted

    @property
    def letters(self) -> int:
        return sum(self.undecoded.values()) + sum(self.diverted.values())

    @property
    def failed(self) -> dict[str, int]:
        """How many rows failed each check, by `<node>.<expectation>`; for undecodable records `<source>.decoded`."""
        unmet = {f"{step}.{name}": count for step, names in self.unmet.items() for name, count in names.items()}
        return {f"{source}.decoded": count for source, count in self.undecoded.items()} | unmet
