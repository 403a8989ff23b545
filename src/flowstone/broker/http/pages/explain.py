"""The page `/explain?topic=T&partition=P&offset=O`: what the broker knows of one offset, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flowstone.broker.http.pages.json_errors import error_answer
from flowstone.broker.topics.offset_explanation import Explaining
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import CorruptBatch

OK = 200
NUMBER_DIGITS_MAX = 19


async def explain_page(explaining: Explaining, cluster_id: str, asked: Mapping[str, str]) -> tuple[int, bytes]:
    """The HTTP status and the JSON."""
    try:
        where = TopicPartition(asked.get("topic", ""), _number(asked, "partition"))
        document = await explaining.explain(where, _number(asked, "offset"))
    except CorruptBatch as error:
        return error_answer(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the batch is damaged: {error.message}"))
    except ApiError as error:
        return error_answer(error)
    return OK, json.dumps({**document, "cluster_id": cluster_id}).encode()


def _number(asked: Mapping[str, str], name: str) -> int:
    text = asked.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{name} is a number, not {text!r}")
    return int(text)
