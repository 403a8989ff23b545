"""InitializeShareGroupState, version 0: begins the states of share partitions in the share coordinator."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.share.share_coordinator import ShareCall
from flowstone.broker.handlers.share.share_state_requests import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import InitialState, StateResult
from flowstone.coordinator.share.records import ShareKey
from flowstone.wire.messages import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeShareGroupStateResponsePartition,
    InitializeShareGroupStateResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    answers = await answer(services, request.group_id, request.topics, _call, _result, _failed)
    return InitializeShareGroupStateResponse(
        results=[
            InitializeShareGroupStateResponseTopic(topic_id=topic_id, partitions=results)
            for topic_id, results in answers
        ]
    )


def _call(key: ShareKey, asked: Any) -> ShareCall:
    state = InitialState(key, asked.state_epoch, max(asked.start_offset, -1))
    return lambda shard, now_ms, token: shard.initialize(now_ms, token, state)


def _result(partition: int, result: StateResult) -> InitializeShareGroupStateResponsePartition:
    return InitializeShareGroupStateResponsePartition(
        partition=partition, error_code=result.error_code, error_message=result.error_message
    )


def _failed(partition: int, code: int, message: str | None) -> InitializeShareGroupStateResponsePartition:
    return InitializeShareGroupStateResponsePartition(partition=partition, error_code=code, error_message=message)
