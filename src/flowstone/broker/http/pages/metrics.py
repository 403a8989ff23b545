"""The page `/metrics`: the broker's metrics in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.broker.http.page import GET, Answer, Page, PageRequest
from flowstone.broker.metrics.exposition import CONTENT_TYPE
from flowstone.broker.requests.permissions import CLUSTER_DESCRIBE

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


async def _metrics(context: PageContext, _: PageRequest) -> Answer:
    return Answer(await context.scrape.text())


METRICS = Page(
    GET,
    "/metrics",
    summary="Prometheus text format",
    permissions=(CLUSTER_DESCRIBE,),
    handler=_metrics,
    content_type=CONTENT_TYPE,
)
