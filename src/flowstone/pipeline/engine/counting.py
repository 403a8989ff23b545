"""Numbers of rows of a micro-batch, by node, found in one Spark job that reads as little as possible.

The rows of a source are counted by whether they could be decoded, those of a step by the set of expectations that they
do not meet. Everything else follows from these, unless a step without expectations is asked about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from flowstone.pipeline.engine.steps import UNMET, StepRows
from flowstone.pipeline.model import ERROR, Action, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SOURCE, _STEP, _ROWS = "source", "step", "rows"
_NOTHING = "CAST(array() AS array<string>)"


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


def count(
    decoded: Mapping[str, DataFrame],
    good: Mapping[str, DataFrame],
    checked: Sequence[StepRows],
    more: Mapping[str, DataFrame],
) -> Counts:
    """Count the rows of sources (`decoded`, of which `good` have no error), of steps, and of `more`."""
    known: dict[int, tuple[str, str, bool]] = {}  # what tells the number of a frame's rows: kind, node, whether all
    parts = []
    for name, rows in decoded.items():
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        failed = F.when(rows[ERROR].isNotNull(), F.array(F.lit("failed"))).otherwise(F.expr(_NOTHING))
        parts.append(_part(rows, _SOURCE, name, failed))
        known |= {id(rows): (_SOURCE, name, True), id(good[name]): (_SOURCE, name, False)}
    for each in checked:
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        assert each.all_rows is not None
        parts.append(_part(each.all_rows, _STEP, each.step.name, F.col(UNMET)))
        known |= {id(each.given): (_STEP, each.step.name, True), id(each.rows): (_STEP, each.step.name, False)}
    parts += [_part(rows, _ROWS, name) for name, rows in more.items() if id(rows) not in known]
    counts = Counts()
    kept: dict[tuple[str, str, bool], int] = {}
    steps = {each.step.name: each.step for each in checked}
    for kind, node, names, number in _counted(parts):
        if kind == _ROWS:
            counts.rows[node] = number
            continue
        is_kept = not names if kind == _SOURCE else _add_step(counts, steps[node], names, number)
        if kind == _SOURCE and not is_kept:
            counts.undecoded[node] = number
        for is_all in (True, False) if is_kept else (True,):
            kept[kind, node, is_all] = kept.get((kind, node, is_all), 0) + number
    for name, rows in more.items():
        if id(rows) in known:
            counts.rows[name] = kept.get(known[id(rows)], 0)
    return counts


def _add_step(counts: Counts, step: Step, unmet: Sequence[str], number: int) -> bool:
    """Add rows of a step that do not meet these expectations; return whether the step keeps them."""
    actions = {each.name: each.action for each in step.expectations}
    for name in unmet:
        names = counts.unmet.setdefault(step.name, {})
        names[name] = names.get(name, 0) + number
    if any(actions[name] is Action.DIVERT for name in unmet):
        counts.diverted[step.name] = counts.diverted.get(step.name, 0) + number
    return not any(actions[name] in (Action.DROP, Action.DIVERT) for name in unmet)


def _part(rows: DataFrame, kind: str, node: str, names: Column | None = None) -> DataFrame:
    """Return what tells for each row where it is counted: kind, node, and the checks that it fails."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    failed = F.expr(_NOTHING) if names is None else names
    return rows.select(F.lit(kind).alias("kind"), F.lit(node).alias("node"), failed.alias("names"))


def _counted(parts: Sequence[DataFrame]) -> list[tuple[str, str, Sequence[str], int]]:
    if not parts:
        return []
    counted = reduce(lambda one, other: one.union(other), parts).groupBy("kind", "node", "names").count()
    return [(row["kind"], row["node"], row["names"], row["count"]) for row in counted.collect()]
