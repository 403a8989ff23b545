"""Whether a client may read what its fetch names, and whether now: with every read, as sessions last for days."""

from __future__ import annotations

from flowstone.broker.fetching.fetch_partitions import FetchPartition
from flowstone.broker.fetching.replica_reads import ReplicaReader
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.context import Services
from flowstone.broker.requests.permissions import TOPIC_READ
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import FetchRequest


def check_may_read(image: ClusterImage, access: Access, client: ClientSession, wanted: FetchPartition) -> None:
    """Raise ApiError if the client may not read the topic. The reader reports a topic id that is unknown."""
    name = wanted.topic
    if not name:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return
        name = topic.name
    if not access.check(client, TOPIC_READ, name):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def bytes_max(services: Services, client: ClientSession, request: FetchRequest, replica: ReplicaReader | None) -> int:
    """Return the most bytes of records that the response may have, unless its first batch is larger."""
    limit = min(request.max_bytes, services.config.fetch_max_bytes)
    if services.quotas.is_active and replica is None:
        quota_bytes = services.quotas.fetch_bytes_max(client)
        if quota_bytes is not None:
            return int(min(limit, quota_bytes))
    return limit


def is_throttled(services: Services, client: ClientSession, replica: ReplicaReader | None, size_bytes: int) -> bool:
    """Return whether the client is over its quota: it then gets nothing, and is muted. Otherwise count the bytes."""
    if not services.quotas.is_active or replica is not None or not size_bytes:
        return False
    return not services.quotas.fetched(client, size_bytes, services.clock.monotonic())
