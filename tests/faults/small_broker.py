"""A broker process whose settings make much happen with little data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.broker_process import UP, BrokerProcess

# Several segments from little data; recovery points that move between two kills.
SMALL_SETTINGS: Mapping[str, str] = {
    "segment.bytes": str(1 << 20),
    "log.flush.offset.checkpoint.interval.ms": "150",
    "index.interval.bytes": "4096",
}


class SmallBroker(BrokerProcess):
    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = UP,
        tracer: Sequence[str] = (),
    ) -> None:
        super().__init__(
            data, port=port, settings={**SMALL_SETTINGS, **(settings or {})}, program=program, tracer=tracer
        )
