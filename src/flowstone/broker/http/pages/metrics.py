"""The page `/metrics`: the broker's metrics in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.broker.http.page import GET, Answer, Page, PageRequest, Permission, ResourceType
from flowstone.broker.metrics.exposition import CONTENT_TYPE
from flowstone.cluster.decisions.acl_operations import AclOperation

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


async def _metrics(context: PageContext, _: PageRequest) -> Answer:
    return Answer(await context.scrape.text())


METRICS = Page(
    GET,
    "/metrics",
    summary="Prometheus text format",
    permission=Permission(AclOperation.DESCRIBE, ResourceType.CLUSTER),
    handler=_metrics,
    content_type=CONTENT_TYPE,
)
