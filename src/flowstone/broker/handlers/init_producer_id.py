"""InitProducerId, versions 0 to 5: an id for an idempotent producer, which every such producer asks for at its start.

An idempotent producer has no identity to come back to, so each request gets a fresh id at epoch 0, whatever id it had
before. Transactions are not served: of the errors that stock clients treat as final and show, rather than retry for
ever, TRANSACTIONAL_ID_AUTHORIZATION_FAILED is the one that all of them know.

A connection or an address that asks for too many ids is told to ask again later (`producer_admission`).

Ids are reserved through the metadata log. A broker that is cut off from it says so soon, as Kafka's do: the producer
then asks another.
"""

from __future__ import annotations

import asyncio

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import done_within
from flowstone.wire.messages import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_ID_WAIT_S_MAX = 1.0


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1)
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
