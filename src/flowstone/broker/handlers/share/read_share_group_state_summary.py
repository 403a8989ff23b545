"""ReadShareGroupStateSummary, versions 0 and 1: returns where share partitions start."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.share.share_coordinator import ShareCall
from flowstone.broker.handlers.share.share_state_requests import answer
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.share.messages import StateSummary
from flowstone.coordinator.share.records import ShareKey
from flowstone.wire.messages import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadShareGroupStateSummaryResponsePartition,
    ReadShareGroupStateSummaryResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    answers = await answer(services, request.group_id, request.topics, _call, _result, _failed)
    return ReadShareGroupStateSummaryResponse(
        results=[
            ReadShareGroupStateSummaryResponseTopic(topic_id=topic_id, partitions=results)
            for topic_id, results in answers
        ]
    )


def _call(key: ShareKey, asked: Any) -> ShareCall:
    return lambda shard, now_ms, token: shard.summarize(now_ms, token, key)


def _result(partition: int, found: StateSummary) -> ReadShareGroupStateSummaryResponsePartition:
    return ReadShareGroupStateSummaryResponsePartition(
        partition=partition,
        error_code=found.error_code,
        error_message=found.error_message,
        state_epoch=found.state_epoch,
        leader_epoch=found.leader_epoch,
        start_offset=found.start_offset,
        delivery_complete_count=found.delivery_complete_count,
    )


def _failed(partition: int, code: int, message: str | None) -> ReadShareGroupStateSummaryResponsePartition:
    return ReadShareGroupStateSummaryResponsePartition(partition=partition, error_code=code, error_message=message)
