"""What `Broker` needs of whatever the broker runs in, and what both kinds of it share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from flowstone.errors import FlowstoneError

# A number of partitions or replicas that is left to the broker's settings.
BROKERS_DEFAULT = -1


class NotServing(FlowstoneError):
    """The broker was asked for something while it is stopped, killed or paused."""


class NotInProcessMode(FlowstoneError):
    """What was asked for exists only where the broker runs in a thread of this process."""


class Record(NamedTuple):
    """One record of a topic, as `Broker.records` gives it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Host(Protocol):
    @property
    def is_running(self) -> bool:
        """Whether there is something to stop or kill; a paused broker runs."""
        ...

    @property
    def http_address(self) -> str | None:
        """HOST:PORT of health and metrics; None where they are off."""
        ...

    def start(self) -> None:
        """Returns when the broker serves. ConfigError, StartupError."""
        ...

    def stop(self) -> None:
        """Ends cleanly, also when paused."""
        ...

    def kill(self) -> None:
        """Ends at once, also when paused."""
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """ApiError says why it cannot be."""
        ...

    def records(self, topic: str) -> list[Record]:
        """By partition and offset. ApiError if there is no such topic."""
        ...

    def wait_for(self, topic: str, count: int, timeout: float) -> list[Record]:
        """The topic's records once there are `count` of them, the topic once it is there. TimeoutError."""
        ...


def timed_out(topic: str, count: int, timeout: float, found: int | None) -> TimeoutError:
    """`found` is None where there is no such topic."""
    seen = f"there is no topic {topic!r}" if found is None else f"{topic!r} has {found}"
    return TimeoutError(f"{count} records were waited for, after {timeout:g} s {seen}")
