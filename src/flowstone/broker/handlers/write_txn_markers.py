"""WriteTxnMarkers, versions 1 and 2: writes end markers of transactions to partitions that this broker leads.

Sent by transaction coordinators, and by an operator who aborts a hanging transaction. The response is sent once the
markers are committed and the group coordinator has applied those of group offsets. A marker that takes too long is
REQUEST_TIMED_OUT, and the sender repeats it. Version 1 does not name the transaction's protocol, which is then V1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flowstone.broker.coordinators.local_markers import Marker
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import done_within
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarker,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseMarker,
    WriteTxnMarkersResponsePartition,
    WriteTxnMarkersResponseTopic,
)

# Shorter than coordinators wait (`marker_sender.REQUEST_TIMEOUT_S`), so that they hear which markers are written.
COMMIT_WAIT_S_MAX = 8.0


async def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    slices = TimeSlices(services.clock.monotonic)
    written: list[list[list[Promise[None]]]] = []
    for each in request.markers:
        marker = _marker(each)
        written.append([])
        for topic in each.topics:
            places = (TopicPartition(topic.name, index) for index in topic.partition_indexes)
            written[-1].append([_write(services, where, marker) async for where in slices.over(places)])
    await _wait(services, [each for topics in written for promises in topics for each in promises])
    return WriteTxnMarkersResponse(
        markers=[await _respond(slices, *each) for each in zip(request.markers, written, strict=True)]
    )


def _marker(marker: WriteTxnMarkersRequestMarker) -> Marker:
    return Marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
    )


def _write(services: Services, where: TopicPartition, marker: Marker) -> Promise[None]:
    if marker.producer_id >= 0 and marker.producer_epoch >= 0:
        return services.transactions.local_markers.write(where, marker)
    refused: Promise[None] = Promise()
    refused.set_exception(ApiError(ErrorCode.INVALID_REQUEST))
    return refused


async def _wait(services: Services, written: Sequence[Promise[None]]) -> None:
    """Return when all promises are done, or after the time limit."""
    missing = [each for each in written if not each.done()]
    if not missing:
        return
    waiting = asyncio.ensure_future(_all(missing))
    try:
        await done_within(services.clock, waiting, COMMIT_WAIT_S_MAX)
    finally:
        waiting.cancel()


async def _all(written: Sequence[Promise[None]]) -> None:
    for each in written:
        try:
            await each
        except ApiError:
            continue  # it is told from the promise


async def _respond(
    slices: TimeSlices, marker: WriteTxnMarkersRequestMarker, topics: Sequence[Sequence[Promise[None]]]
) -> WriteTxnMarkersResponseMarker:
    answered = []
    async for topic, promises in slices.over(zip(marker.topics, topics, strict=True)):
        partitions = [
            WriteTxnMarkersResponsePartition(partition_index=index, error_code=_code(each))
            async for index, each in slices.over(zip(topic.partition_indexes, promises, strict=True))
        ]
        answered.append(WriteTxnMarkersResponseTopic(name=topic.name, partitions=partitions))
    return WriteTxnMarkersResponseMarker(producer_id=marker.producer_id, topics=answered)


def _code(written: Promise[None]) -> ErrorCode:
    if not written.done():
        return ErrorCode.REQUEST_TIMED_OUT
    error = written.exception()
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR
