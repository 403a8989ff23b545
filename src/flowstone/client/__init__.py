"""A thin blocking client for our own readers and writers of whole record batches: Spark, Arrow, tools.

Not a general client: it joins no groups, handles no single records, and has no threads. Use a Kafka client for those.

Each name is imported on first use: a broker that has no other brokers to talk to needs only the errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowstone.client.cluster import Cluster
    from flowstone.client.errors import (
        BadAddress,
        BadAnswer,
        ClientError,
        DeliveryFailed,
        GaveUp,
        OffsetsLost,
        OffsetsNotWritten,
        Refused,
        TopicRecreated,
        UnknownTopic,
    )
    from flowstone.client.fetching import AbortedTransaction, Fetched
    from flowstone.client.offsets import EARLIEST, LATEST, ListedOffset
    from flowstone.client.producer import Producer
    from flowstone.client.topics import DescribedTopic

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortedTransaction",
    "BadAddress",
    "BadAnswer",
    "ClientError",
    "Cluster",
    "DeliveryFailed",
    "DescribedTopic",
    "Fetched",
    "GaveUp",
    "ListedOffset",
    "OffsetsLost",
    "OffsetsNotWritten",
    "Producer",
    "Refused",
    "TopicRecreated",
    "UnknownTopic",
]

_MODULES = {
    "AbortedTransaction": "fetching",
    "Cluster": "cluster",
    "DescribedTopic": "topics",
    "EARLIEST": "offsets",
    "Fetched": "fetching",
    "LATEST": "offsets",
    "ListedOffset": "offsets",
    "Producer": "producer",
}


def __dir__() -> list[str]:
    """Return the public names, whether or not they have been loaded yet."""
    return sorted(__all__)


if not TYPE_CHECKING:  # otherwise a type checker accepts every name as one of the module's

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value
