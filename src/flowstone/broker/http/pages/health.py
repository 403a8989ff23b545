"""The pages `/health` and `/ready`: probes, which are answered even if all other limits are reached."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flowstone.broker.http.page import GET, OK, Answer, Page, PageRequest
from flowstone.broker.requests.permissions import NO_PERMISSIONS

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext

UNAVAILABLE = 503


async def _health(context: PageContext, _: PageRequest) -> Answer:
    failure = context.condition.failure()
    if failure is None:
        return _state(OK, "ok")
    return _state(UNAVAILABLE, "failed", reason=failure)


async def _ready(context: PageContext, _: PageRequest) -> Answer:
    return _state(OK, "ready") if context.condition.is_serving() else _state(UNAVAILABLE, "not ready")


def _state(status: int, state: str, **more: str) -> Answer:
    return Answer(json.dumps({"status": state, **more}).encode(), status)


HEALTH = Page(
    GET,
    "/health",
    summary=(
        "200 while the broker works; 503 with the reason once its data directory, or the last of several, has failed. "
        "A full disk does not change it: watch `flowstone_log_directory_free_bytes`"
    ),
    permissions=NO_PERMISSIONS,
    handler=_health,
    is_probe=True,
)
READY = Page(
    GET,
    "/ready",
    summary="200 while the broker accepts clients; 503 while it stops or after it failed",
    permissions=NO_PERMISSIONS,
    handler=_ready,
    is_probe=True,
)
