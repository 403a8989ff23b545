"""WriteShareGroupState, versions 0 and 1: changes the states of share partitions, for their leaders."""

from __future__ import annotations

import struct
from typing import Any

from flowstone.broker.coordinators.share.share_coordinator import ShareCall
from flowstone.broker.handlers.share.share_state_requests import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import StateResult, StateWrite
from flowstone.coordinator.share.record_format import decode_delays, decode_letters, decode_ranges
from flowstone.coordinator.share.records import Delay, LetterBatch, LetterRange, ShareKey, StateBatch
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteShareGroupStateResponsePartition,
    WriteShareGroupStateResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    answers = await answer(services, request.group_id, request.topics, _call, _result, _failed)
    return WriteShareGroupStateResponse(
        results=[
            WriteShareGroupStateResponseTopic(topic_id=topic_id, partitions=results) for topic_id, results in answers
        ]
    )


def _call(key: ShareKey, asked: Any) -> ShareCall:
    batches = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in asked.state_batches
    )
    epochs = asked.state_epoch, asked.leader_epoch
    delays, letters, given_up = _own(asked)
    count = asked.delivery_complete_count
    write = StateWrite(key, *epochs, asked.start_offset, batches, count, delays, letters, given_up)
    return lambda shard, now_ms, token: shard.write(now_ms, token, write)


def _own(asked: Any) -> tuple[tuple[Delay, ...], LetterBatch | None, tuple[LetterRange, ...]]:
    """Return the delays, letters and records given up of a change. Raises ApiError if they are malformed."""
    delays, letters, given_up = asked.flowstone_delays, asked.flowstone_letters, asked.flowstone_given_up
    try:
        return (
            () if delays is None else decode_delays(bytes(delays)),
            None if letters is None else decode_letters(bytes(letters)),
            () if given_up is None else decode_ranges(bytes(given_up)),
        )
    except struct.error as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Flowstone's own fields cannot be read: {error}") from error


def _result(partition: int, result: StateResult) -> WriteShareGroupStateResponsePartition:
    return WriteShareGroupStateResponsePartition(
        partition=partition, error_code=result.error_code, error_message=result.error_message
    )


def _failed(partition: int, code: int, message: str | None) -> WriteShareGroupStateResponsePartition:
    return WriteShareGroupStateResponsePartition(partition=partition, error_code=code, error_message=message)
