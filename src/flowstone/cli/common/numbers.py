"""Bounds of numbers on the command line."""

from __future__ import annotations

import math

import typer

from flowstone.cli.common.errors import CommandError
from flowstone.config import INT_MAX, LONG_MAX

# Partitions and brokers are int32 on the wire, offsets and times int64.
PARTITION_MAX = BROKER_MAX = INT_MAX
PARTITION_DIGITS_MAX = len(str(PARTITION_MAX))
OFFSET_MAX = LONG_MAX
# Maximum partitions that a broker creates per topic in one request, in Kafka as here.
PARTITIONS_MAX = 10_000
REPLICATION_FACTOR_MAX = 10_000  # of the client library
ROWS_MAX = 10**12
SECONDS_MAX = 86_400.0
PER_SECOND_MAX = 1e9
THROTTLE_MAX = LONG_MAX
_DIGITS_MAX = 19  # of the largest int64


def finite(value: float | None) -> float | None:
    """Return the option's value. Raises an error if it is NaN, which typer's `min` and `max` accept."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be used here.")
    return value


def parse_whole(option: str, text: str, maximum: int, expected: str) -> int:
    """Return text as a whole number from 0 to `maximum`. Raises CommandError, which names `expected`, if it is none."""
    if not (text.isascii() and text.isdecimal()):
        raise CommandError(f"{option} {text}: expected {expected}")
    if len(text.lstrip("0")) > _DIGITS_MAX or int(text) > maximum:
        raise CommandError(f"{option} {text}: choose between 0 and {maximum}")
    return int(text)
