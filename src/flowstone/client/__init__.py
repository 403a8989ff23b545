"""A thin blocking client for our own readers and writers of whole record batches: Spark, Arrow, tools.

Not a general client: it joins no groups, handles no single records, and has no threads. Use a Kafka client for those.
"""

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
    UnknownTopic,
)
from flowstone.client.fetching import AbortedTransaction, Fetched
from flowstone.client.offsets import EARLIEST, LATEST, ListedOffset
from flowstone.client.producer import Producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortedTransaction",
    "BadAddress",
    "BadAnswer",
    "ClientError",
    "Cluster",
    "DeliveryFailed",
    "Fetched",
    "GaveUp",
    "ListedOffset",
    "OffsetsLost",
    "OffsetsNotWritten",
    "Producer",
    "Refused",
    "UnknownTopic",
]
