"""The page `/restore`: POST creates a topic from what `flowstone restore` has staged in the log directories.

Request: `{"cluster_id": …, "topic": …, "partitions": …, "token": …, "settings": {…}}`. The cluster's id is required
because the address may belong to a broker of another cluster than the client expects. The response is sent once the
topic exists.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flowstone.broker.http.page import POST, Answer, Page, PageRequest
from flowstone.broker.http.pages.json_documents import read_json
from flowstone.broker.requests.permissions import TOPIC_CREATE
from flowstone.broker.topics.restoring import RestoreRequest, restore_topic
from flowstone.cluster.image.ids import id_text
from flowstone.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


async def _restore(context: PageContext, asked: PageRequest) -> Answer:
    request = _read(asked.body, context.cluster_id)
    asked.caller.require(TOPIC_CREATE, request.topic)
    topic_id = await restore_topic(context.services, request)
    return Answer(json.dumps({"topic": request.topic, "topic_id": id_text(topic_id)}).encode())


def _read(body: bytes, cluster_id: str) -> RestoreRequest:
    refused = ApiError(ErrorCode.INVALID_REQUEST, "not a request for a restore")
    try:
        asked: Any = read_json(body)
        if asked["cluster_id"] != cluster_id:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {cluster_id}")
        request = RestoreRequest(asked["topic"], asked["partitions"], asked["token"], asked["settings"])
        texts = (request.topic, request.token, *request.settings, *request.settings.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise refused from None
    if type(request.partition_count) is not int or not all(isinstance(each, str) for each in texts):
        raise refused
    return request


RESTORE = Page(
    POST,
    "/restore",
    summary="create a topic from what `flowstone restore` has staged: see [disks](disks.md#backup-and-restore)",
    permissions=(TOPIC_CREATE,),
    handler=_restore,
    checks_names=True,
)
