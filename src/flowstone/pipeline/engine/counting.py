"""Numbers of rows of a micro-batch, by node, found in one Spark job that reads as little as possible.

The rows of a source are counted by whether they could be decoded, those of a step by the set of expectations that they
do not meet. Everything else follows from these, unless a step without expectations is asked about: a second job counts
its rows (`Counts.complete`), which has to be done before the end of a micro-batch, but not before its outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from flowstone.pipeline.engine.steps import StepRows, unmet_columns
from flowstone.pipeline.model import ERROR, Action, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SOURCE, _STEP = "source", "step"


@dataclass(frozen=True)
class _Part:
    """Rows to count, by the checks that they fail."""

    kind: str
    node: str
    rows: DataFrame
    checks: Sequence[Column] = ()


@dataclass(frozen=True)
class Counts:
    """Numbers of rows, each by node."""

    undecoded: dict[str, int] = field(default_factory=dict)  # by source
    unmet: dict[str, dict[str, int]] = field(default_factory=dict)  # by step and expectation
    diverted: dict[str, int] = field(default_factory=dict)  # by step
    rows: dict[str, int] = field(default_factory=dict)  # of the further rows that were counted
    uncounted: dict[str, DataFrame] = field(default_factory=dict)  # further rows, whose number does not follow

    @property
    def letters(self) -> int:
        return sum(self.undecoded.values()) + sum(self.diverted.values())

    @property
    def failed(self) -> dict[str, int]:
        """The number of rows that failed each check, by `<node>.<expectation>`; for undecodable records
        `<source>.decoded`.
        """
        unmet = {f"{step}.{name}": count for step, names in self.unmet.items() for name, count in names.items()}
        return {f"{source}.decoded": count for source, count in self.undecoded.items()} | unmet

    def complete(self) -> None:
        """Count the rows that are not counted yet, in one Spark job."""
        found = dict.fromkeys(self.uncounted, 0)
        for part, _failed, number in _counted([_Part("", name, rows) for name, rows in self.uncounted.items()]):
            found[part.node] = number
        self.rows.update(found)
        self.uncounted.clear()


def count(
    decoded: Mapping[str, DataFrame],
    good: Mapping[str, DataFrame],
    checked: Sequence[StepRows],
    more: Mapping[str, DataFrame],
) -> Counts:
    """Count the rows of sources (`decoded`; `good` have no error), of steps, and those of `more` that follow from them.

    The others are in `uncounted`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    known: dict[int, tuple[str, str, bool]] = {}  # what tells the number of a frame's rows: kind, node, whether all
    parts: list[_Part] = []
    for name, rows in decoded.items():
        parts.append(_Part(_SOURCE, name, rows, [F.col(ERROR).isNotNull()]))
        known |= {id(rows): (_SOURCE, name, True), id(good[name]): (_SOURCE, name, False)}
    for each in checked:
        assert each.all_rows is not None
        parts.append(_Part(_STEP, each.step.name, each.all_rows, [F.col(flag) for flag in unmet_columns(each.step)]))
        known |= {id(each.given): (_STEP, each.step.name, True), id(each.rows): (_STEP, each.step.name, False)}
    counts = Counts(uncounted={name: rows for name, rows in more.items() if id(rows) not in known})
    kept: dict[tuple[str, str, bool], int] = {}
    steps = {each.step.name: each.step for each in checked}
    for part, failed, number in _counted(parts):
        if part.kind == _STEP:
            is_kept = _add_step(counts, steps[part.node], failed, number)
        else:
            is_kept = True not in failed
            if not is_kept:
                counts.undecoded[part.node] = number
        for is_all in (True, False) if is_kept else (True,):
            key = part.kind, part.node, is_all
            kept[key] = kept.get(key, 0) + number
    for name, rows in more.items():
        if id(rows) in known:
            counts.rows[name] = kept.get(known[id(rows)], 0)
    return counts


def _add_step(counts: Counts, step: Step, failed: Sequence[bool], number: int) -> bool:
    """Add rows of a step that do not meet the expectations marked in `failed`; return whether the step keeps them."""
    unmet = [each for each, is_unmet in zip(step.expectations, failed, strict=True) if is_unmet]
    for each in unmet:
        names = counts.unmet.setdefault(step.name, {})
        names[each.name] = names.get(each.name, 0) + number
    if any(each.action is Action.DIVERT for each in unmet):
        counts.diverted[step.name] = counts.diverted.get(step.name, 0) + number
    return not any(each.action in (Action.DROP, Action.DIVERT) for each in unmet)


def _counted(parts: Sequence[_Part]) -> list[tuple[_Part, list[bool], int]]:
    """Return the numbers of rows of each part by the checks that they fail.

    The checks are one short text for each row, which Spark groups by in a fraction of the time that an array takes.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not parts:
        return []
    selected = []
    for index, part in enumerate(parts):
        checks = [F.when(each, F.lit("1")).otherwise(F.lit("0")) for each in part.checks]
        selected.append(part.rows.select(F.lit(index).alias("part"), F.concat(F.lit(""), *checks).alias("failed")))
    counted = reduce(lambda one, other: one.union(other), selected).groupBy("part", "failed").count()
    return [(parts[row["part"]], [each == "1" for each in row["failed"]], row["count"]) for row in counted.collect()]
