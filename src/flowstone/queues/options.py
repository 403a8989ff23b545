"""The options of a queue, checked."""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.client.security import ClientSecurity

IN_FLIGHT_MAX = 10_000
BEGINNINGS = ("earliest", "latest", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    topic: str
    group: str
    bootstrap: str
    in_flight: int
    hold_max_s: float
    begin: str | None
    raise_errors: bool
    client_id: str
    connect_s: float
    security: ClientSecurity | None = None  # None: that of the process

    def __post_init__(self) -> None:
        """Raise ValueError for an option without sense."""
        if not self.topic or not self.group:
            raise ValueError("a queue needs the name of its topic, and the name of the group that works on it")
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise ValueError(f"in_flight is {self.in_flight}, and must be between 1 and {IN_FLIGHT_MAX}")
        if self.hold_max_s <= 0:
            raise ValueError(f"hold_max_s is {self.hold_max_s}, and must be positive")
        if self.begin not in BEGINNINGS:
            raise ValueError(f"begin is {self.begin!r}, and must be 'earliest', 'latest' or None")
