"""The two promises about the disk that brokers are compared under, as each broker is told to keep them.

Equal promises only: a broker that flushes is never held against one that does not, but where an aim says so by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLOWSTONE, KAFKA = "flowstone", "kafka"
NEVER = "9223372036854775807"


@dataclass(frozen=True, slots=True)
class Mode:
    """`round_bytes` stays small enough for the page cache to recycle memory from round to round."""

    name: str
    acks: int
    round_bytes: int
    settings: Mapping[str, Mapping[str, str]]


NOT_FLUSHED = Mode("not flushed", 1, 300_000_000, {FLOWSTONE: {"flush.messages": NEVER}, KAFKA: {}})
FLUSHED = Mode("flushed", -1, 150_000_000, {FLOWSTONE: {}, KAFKA: {"log.flush.interval.messages": "1"}})
MODES = (NOT_FLUSHED, FLUSHED)
