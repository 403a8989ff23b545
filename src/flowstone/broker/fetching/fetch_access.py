"""Whether a client may read what its fetch names, checked with every read: a session may last for days."""

from __future__ import annotations

from flowstone.broker.fetching.fetch_partitions import FetchPartition
from flowstone.broker.requests.access import Access
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
