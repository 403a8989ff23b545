"""The two flush modes in which brokers are compared, and each broker's settings for them.

Only equal guarantees are compared: never a broker that flushes with one that does not, except for an aim that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLOWSTONE, KAFKA = "flowstone", "kafka"
NEVER = "9223372036854775807"


@dataclass(frozen=True, slots=True)
class Mode:
    """A flush mode; `round_bytes` is small enough for the page cache to reuse memory from round to round."""

    name: str
    acks: int
    round_bytes: int
    settings: Mapping[str, Mapping[str, str]]


NOT_FLUSHED = Mode("not flushed", 1, 300_000_000, {FLOWSTONE: {"flush.messages": NEVER}, KAFKA: {}})
FLUSHED = Mode("flushed", -1, 150_000_000, {FLOWSTONE: {}, KAFKA: {"log.flush.interval.messages": "1"}})
MODES = (NOT_FLUSHED, FLUSHED)
