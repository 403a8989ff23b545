"""ReadShareGroupState, version 0: returns the states of share partitions to their leaders."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.share.share_coordinator import ShareCall
from flowstone.broker.handlers.share.share_state_requests import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import StateRead
from flowstone.coordinator.share.record_format import encode_delays, encode_letters, encode_ranges
from flowstone.coordinator.share.records import ShareKey
from flowstone.wire.messages import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateResponsePartition,
    ReadShareGroupStateResponseStateBatch,
    ReadShareGroupStateResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    answers = await answer(services, request.group_id, request.topics, _call, _result, _failed)
    return ReadShareGroupStateResponse(
        results=[
            ReadShareGroupStateResponseTopic(topic_id=topic_id, partitions=results) for topic_id, results in answers
        ]
    )


def _call(key: ShareKey, asked: Any) -> ShareCall:
    return lambda shard, now_ms, token: shard.read(now_ms, token, key, asked.leader_epoch)


def _result(partition: int, found: StateRead) -> ReadShareGroupStateResponsePartition:
    return ReadShareGroupStateResponsePartition(
        partition=partition,
        error_code=found.error_code,
        error_message=found.error_message,
        state_epoch=found.state_epoch,
        start_offset=found.start_offset,
        state_batches=[
            ReadShareGroupStateResponseStateBatch(
                first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
            )
            for first, last, state, count in found.batches
        ],
        flowstone_delays=encode_delays(found.delays) if found.delays else None,
        flowstone_letters=None if found.letters is None else encode_letters(found.letters),
        flowstone_given_up=encode_ranges(found.given_up) if found.given_up else None,
    )


def _failed(partition: int, code: int, message: str | None) -> ReadShareGroupStateResponsePartition:
    return ReadShareGroupStateResponsePartition(partition=partition, error_code=code, error_message=message)
