"""InitProducerId, versions 0 to 6: an id for an idempotent producer, which every such producer asks for at its start.

An idempotent producer has no identity to come back to, so each request gets a fresh id at epoch 0, whatever id it had
before. Transactions are not served: of the errors that stock clients treat as final and show, rather than retry for
ever, TRANSACTIONAL_ID_AUTHORIZATION_FAILED is the one that all of them know.
"""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.errors import ErrorCode
from flowstone.wire.messages import InitProducerIdRequest, InitProducerIdResponse


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=await services.metadata.next_producer_id(), producer_epoch=0)
