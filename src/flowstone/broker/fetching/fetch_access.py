"""Permissions and quotas of fetches, checked at every read, because fetch sessions last for days."""

from __future__ import annotations

from flowstone.broker.fetching.fetch_partitions import FetchPartition
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.context import Services
from flowstone.broker.requests.permissions import TOPIC_READ
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.errors import ApiError, ErrorCode


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


def bytes_max(services: Services, client: ClientSession, limit: int) -> int:
    """Return the most bytes of records that the client's quota lets a response have, `limit` at most."""
    quota_bytes = services.quotas.fetch_bytes_max(client)
    return limit if quota_bytes is None else int(min(limit, quota_bytes))


def is_throttled(services: Services, client: ClientSession, size_bytes: int) -> bool:
    """Return whether the client is over its quota: it then gets nothing, and is muted. Otherwise count the bytes."""
    return bool(size_bytes) and not services.quotas.fetched(client, size_bytes, services.clock.monotonic())
