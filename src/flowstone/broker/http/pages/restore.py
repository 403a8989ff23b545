"""The page `/restore`: POST makes a topic of what `flowstone restore` has staged in the log directories.

Asked: `{"cluster_id": …, "topic": …, "partitions": …, "token": …, "settings": {…}}`; the cluster's id, because the
broker at an address may be another one than the client takes it for. Answered once the topic is there.
"""

from __future__ import annotations

import json
from typing import Any

from flowstone.broker.http.pages.json_bodies import read_json
from flowstone.broker.http.pages.json_errors import error_answer
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.restoring import RestoreRequest, restore_topic
from flowstone.cluster.image.ids import id_text
from flowstone.errors import ApiError, ConfigError, ErrorCode, StorageFault

OK = 200


async def restore_page(services: Services, body: bytes) -> tuple[int, bytes]:
    """The HTTP status and the JSON."""
    try:
        request = _read(body, services.logs.identity.cluster_id)
        topic_id = await restore_topic(services, request)
        return OK, json.dumps({"topic": request.topic, "topic_id": id_text(topic_id)}).encode()
    except ApiError as error:
        return error_answer(error)
    except ConfigError as error:
        return error_answer(ApiError(ErrorCode.INVALID_CONFIG, str(error)))
    except StorageFault as fault:
        return error_answer(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)))


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
