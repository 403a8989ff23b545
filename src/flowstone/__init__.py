"""Flowstone: a log-based message broker that speaks Kafka's wire protocol.

`flowstone.Broker` runs a broker inside this process, `flowstone.Cluster` a cluster of brokers. `flowstone.read` and
`flowstone.read_batches` return a topic as Arrow columns. `flowstone.Queue` is a topic as a work queue. Each is imported
on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowstone.arrow.read import read, read_batches
    from flowstone.embedded import Broker, Cluster
    from flowstone.queues.queue import Queue

__all__ = ["Broker", "Cluster", "Queue", "__version__", "read", "read_batches"]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    """Return the public names, whether or not they have been loaded yet."""
    return sorted(__all__)


if not TYPE_CHECKING:  # otherwise a type checker accepts every name as one of the module's

    def __getattr__(name: str) -> Any:
        if name in ("Broker", "Cluster"):
            from flowstone import embedded

            return getattr(embedded, name)
        if name in ("read", "read_batches"):
            from flowstone.arrow import read

            return getattr(read, name)
        if name == "Queue":
            from flowstone.queues.queue import Queue

            return Queue
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
