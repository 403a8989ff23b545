"""The page `/events`: a stream of what changes in the cluster, as server-sent events.

The first event, `state`, names the version of the metadata after which changes are published. A client that reads the
other pages after it, and again after each event `reset`, misses nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from flowstone.broker.http.page import EVENT_STREAM_TYPE, GET, Page, PageRequest, Publish
from flowstone.broker.requests.permissions import CLUSTER_DESCRIBE, GROUP_DESCRIBE, TOPIC_DESCRIBE
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.image.acl import WILDCARD

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


def _subscribe(context: PageContext, request: PageRequest, publish: Publish) -> AbstractContextManager[None]:
    """Publish the events for as long as the caller has the permissions: a stream can last for days."""
    may = request.caller.may

    def publish_if_allowed(event: bytes) -> None:
        if may(CLUSTER_DESCRIBE, CLUSTER_NAME) and may(TOPIC_DESCRIBE, WILDCARD) and may(GROUP_DESCRIBE, WILDCARD):
            publish(event)

    return context.feed.subscribe(publish_if_allowed)


EVENTS = Page(
    GET,
    "/events",
    summary="a stream of changes: topics, leaders, brokers, groups: see [below](#follow-changes-as-they-happen)",
    permissions=(CLUSTER_DESCRIBE, TOPIC_DESCRIBE, GROUP_DESCRIBE),
    subscribe=_subscribe,
    content_type=EVENT_STREAM_TYPE,
)
