"""Rows as JSON objects: collected from Spark, and compared with the rows that a test expects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.model import RECORD, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows that are collected for a comparison; more are a mistake in a test.
ROWS_MAX = 100_000


def collect(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON objects with all their columns but RECORD."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    plain = rows.drop(RECORD)
    if not plain.columns:
        return [{} for _row in plain.limit(ROWS_MAX).collect()]
    whole = F.struct(*[F.col(f"`{each}`") for each in plain.columns])
    shown = plain.select(F.to_json(whole, {"ignoreNullFields": "false"})).limit(ROWS_MAX)
    return [json.loads(row[0]) for row in shown.collect()]


@dataclass(frozen=True)
class Comparison:
    missing: tuple[Row, ...]  # expected rows that are not there
    unexpected: tuple[Row, ...]  # rows that no expected row matches

    @property
    def is_equal(self) -> bool:
        return not self.missing and not self.unexpected


def compare(expected: Sequence[Row], found: Iterable[Row]) -> Comparison:
    """Compare rows in any order. An expected row matches one found row that has the same values in its columns."""
    left = list(found)
    missing = []
    # Rows that name more columns choose first: another one may match what they need.
    for wanted in sorted(expected, key=len, reverse=True):
        match = next((number for number, row in enumerate(left) if matches(wanted, row)), None)
        if match is None:
            missing.append(wanted)
        else:
            del left[match]
    return Comparison(tuple(missing), tuple(left))


def matches(wanted: Row, found: Row) -> bool:
    return all(is_same(value, found.get(name)) for name, value in wanted.items())


def is_same(wanted: Any, found: Any) -> bool:
    """Return whether two JSON values are equal; times may be written in different ways, and 1 is 1.0."""
    if isinstance(wanted, datetime):
        wanted = wanted.isoformat()
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return wanted.keys() == found.keys() and all(is_same(wanted[name], found[name]) for name in wanted)
    if isinstance(wanted, list | tuple) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(is_same, wanted, found))
    if isinstance(wanted, bool) is not isinstance(found, bool):
        return False
    if wanted == found:
        return True
    if isinstance(wanted, str) and isinstance(found, str):
        times = _time(wanted), _time(found)
        return None not in times and times[0] == times[1]
    return False


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
