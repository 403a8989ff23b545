"""InitProducerId, versions 0 to 5: gives a producer its id and epoch.

An idempotent producer without a transactional id gets a new id at epoch 0 with each request, whatever id it had before.
For a transactional id the coordinator keeps the producer id and raises the epoch, so that earlier producers with the
same transactional id are fenced; since version 3 the client sends its current id and epoch. Versions before 4 do not
know PRODUCER_FENCED.

A connection or an address that requests too many ids must retry later (`producer_admission`).

Ids are reserved through the metadata log. A broker that cannot reach it refuses soon, as Kafka's brokers do, and the
producer asks another broker.
"""

from __future__ import annotations

import asyncio

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.coordinators.transaction_answers import told
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.transactions import messages
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import done_within
from flowstone.wire.messages import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_ID_WAIT_S_MAX = 1.0


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return await _transactional(services, context, request)
    try:
        services.producers.check_new_id(context.session.peer)
    except ApiError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
    asking = asyncio.ensure_future(services.metadata.next_producer_id())
    try:
        if not await done_within(services.clock, asking, PRODUCER_ID_WAIT_S_MAX):
            return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
        return InitProducerIdResponse(producer_id=asking.result(), producer_epoch=0)
    finally:
        asking.cancel()


async def _transactional(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    assert request.transactional_id is not None
    initialize = messages.InitProducerIdRequest(
        request.transactional_id, request.transaction_timeout_ms, request.producer_id, request.producer_epoch
    )
    await services.transactions.producer_ids.wait_filled(PRODUCER_ID_WAIT_S_MAX)
    outcome = await outcome_of(
        services.transactions.request(
            initialize.transactional_id,
            lambda shard, now_ms, token: shard.init_producer_id(now_ms, token, initialize),
        )
    )
    if isinstance(outcome, ApiError):
        outcome = messages.InitProducerIdResponse(outcome.code)
    return InitProducerIdResponse(
        error_code=told(context.api_key, context.api_version, outcome.error_code),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )
