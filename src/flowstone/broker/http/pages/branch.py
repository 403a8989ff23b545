"""The page `/branch`: POST creates a branch of a topic. Kafka's protocol has no such request.

Request: `{"cluster_id": …, "source": …, "target": …, "time_ms": … or null, "groups": …}`. The cluster's id is required
because the address may belong to a broker of another cluster than the client expects. The response is sent once the
branch exists; if that takes long, because a large segment is copied, status 202 says that the work goes on, and
repeating the request waits for it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from flowstone.broker.http.page import ACCEPTED, POST, Answer, Page, PageRequest
from flowstone.broker.http.pages.json_documents import encode_json, read_json
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.permissions import GROUP_READ, TOPIC_CREATE, TOPIC_READ
from flowstone.broker.topics.branching import BranchedTopic, BranchRequest
from flowstone.cluster.image.acl import WILDCARD
from flowstone.cluster.image.ids import id_text
from flowstone.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext

# Shorter than the time in which a connection must begin its answer (`connections.ANSWER_TIMEOUT_S`).
ANSWER_WAIT_S = 20.0
TIME_MS_MAX = 2**63 - 1


async def _branch(context: PageContext, asked: PageRequest) -> Answer:
    request = _read(asked.body, context.cluster_id)
    asked.caller.require(TOPIC_READ, request.source)
    asked.caller.require(TOPIC_CREATE, request.target)
    if request.with_groups:
        asked.caller.require(GROUP_READ, WILDCARD)  # the offsets of every group are copied
    task = context.branches.begin(request)
    await asyncio.wait([task], timeout=ANSWER_WAIT_S)
    if not task.done():
        return Answer(json.dumps({"state": "under way"}).encode(), ACCEPTED)
    if task.cancelled():
        raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker stops")
    encoding = encode_json(_document(request, task.result()))
    return Answer((await run_in_slices(encoding, TimeSlices(context.services.clock.monotonic))).encode())


def _read(body: bytes, cluster_id: str) -> BranchRequest:
    try:
        asked: Any = read_json(body)
        if asked["cluster_id"] != cluster_id:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {cluster_id}")
        request = BranchRequest(asked["source"], asked["target"], asked["time_ms"], asked["groups"])
    except (ValueError, KeyError, TypeError):
        raise ApiError(ErrorCode.INVALID_REQUEST, "not a request for a branch") from None
    source, target, time_ms, with_groups = request
    is_time = time_ms is None or (type(time_ms) is int and 0 <= time_ms <= TIME_MS_MAX)
    if not (isinstance(source, str) and isinstance(target, str) and is_time and isinstance(with_groups, bool)):
        raise ApiError(ErrorCode.INVALID_REQUEST, "not a request for a branch")
    return request


def _document(request: BranchRequest, branch: BranchedTopic) -> dict[str, Any]:
    return {
        "state": "done",
        "topic": request.target,
        "source": request.source,
        "topic_id": id_text(branch.topic_id),
        "time_ms": request.time_ms,
        "partitions": (each._asdict() for each in branch.partitions),
        "groups": iter(branch.group_ids),
        "took_ms": branch.took_ms,
    }


BRANCH = Page(
    POST,
    "/branch",
    summary="create a branch of a topic: see [travel in time](time-travel.md)",
    permissions=(TOPIC_READ, TOPIC_CREATE, GROUP_READ),
    handler=_branch,
    checks_names=True,
)
