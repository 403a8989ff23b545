"""The page `/explain?topic=T&partition=P&offset=O`: storage, origin, readers and retention of an offset, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.broker.http.page import (
    GET,
    TOPIC_NAME_CHARACTERS_MAX,
    Answer,
    Integer,
    Page,
    PageRequest,
    Text,
)
from flowstone.broker.http.pages.json_documents import encode_json
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.permissions import GROUP_DESCRIBE, TOPIC_READ, TRANSACTIONAL_ID_DESCRIBE
from flowstone.broker.topics.offset_explanation import Explaining
from flowstone.config import INT_MAX, LONG_MAX
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import CorruptBatch

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


async def _explain(context: PageContext, request: PageRequest) -> Answer:
    topic, partition, offset = request.text("topic"), request.integer("partition"), request.integer("offset")
    assert topic is not None
    assert partition is not None
    assert offset is not None
    explaining = Explaining(context.services, context.survey)
    try:
        document = await explaining.explain(TopicPartition(topic, partition), offset)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the batch is damaged: {error.message}") from None
    held_by, may = document["transaction"]["held_by"], request.caller.may
    if held_by is not None and not may(TRANSACTIONAL_ID_DESCRIBE, held_by["transactional_id"] or ""):
        held_by["transactional_id"] = None
    document["groups"] = (each for each in document["groups"] if may(GROUP_DESCRIBE, each["group"]))
    encoding = encode_json({**document, "cluster_id": context.cluster_id})
    return Answer((await run_in_slices(encoding, TimeSlices(context.services.clock.monotonic))).encode())


EXPLAIN = Page(
    GET,
    "/explain",
    summary="where an offset is stored, who wrote and read it, when it expires: see [travel in time](time-travel.md)",
    permissions=(TOPIC_READ, GROUP_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE),
    handler=_explain,
    checks_names=True,
    parameters=(
        Text("topic", TOPIC_NAME_CHARACTERS_MAX, is_required=True),
        Integer("partition", INT_MAX, is_required=True),
        Integer("offset", LONG_MAX, is_required=True),
    ),
)
