"""The interface between `Broker` and the thread or process in which the broker runs, and its shared parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from flowstone.errors import FlowstoneError

# Number of partitions or replicas: use the broker's settings.
BROKERS_DEFAULT = -1


class NotServing(FlowstoneError):
    """A call needs a running broker, but it is stopped, killed or paused."""


class NotInProcessMode(FlowstoneError):
    """A call is only supported for a broker in a thread of this process."""


class Record(NamedTuple):
    """One record of a topic, as `Broker.records` returns it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Host(Protocol):
    @property
    def is_running(self) -> bool:
        """Return whether there is a broker to stop or kill, which includes a paused one."""
        ...

    @property
    def http_address(self) -> str | None:
        """Return HOST:PORT of the pages for health and metrics, or None if they are off."""
        ...

    def start(self) -> None:
        """Start the broker and return when it is ready. Raises ConfigError or StartupError if it cannot start."""
        ...

    def stop(self) -> None:
        """Stop the broker cleanly, even if it is paused."""
        ...

    def kill(self) -> None:
        """End the broker immediately, even if it is paused."""
        ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic. Raises ApiError if the broker refuses it."""
        ...

    def records(self, topic: str, *, read_committed: bool) -> list[Record]:
        """Return the topic's records by partition and offset. Raises ApiError if the topic does not exist."""
        ...

    def wait_for(self, topic: str, count: int, timeout: float, *, read_committed: bool) -> list[Record]:
        """Wait until the topic exists and has `count` records, and return them. Raises TimeoutError if it has not."""
        ...


def timed_out(topic: str, count: int, timeout: float, found: int | None) -> TimeoutError:
    """Return the error for a wait that timed out; `found` is None if the topic does not exist."""
    seen = f"there is no topic {topic!r}" if found is None else f"{topic!r} has {found}"
    return TimeoutError(f"waited {timeout:g} s for {count} records: {seen}")
