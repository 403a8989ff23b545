"""A thin blocking client for our own readers and writers of whole record batches: Spark, Arrow, tools.

Not a general client: no groups to join, no records one by one, no threads; those who need that use a Kafka client.
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
