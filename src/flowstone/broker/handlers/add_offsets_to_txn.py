"""AddOffsetsToTxn, versions 0 to 4: adds a group's partition of `__consumer_offsets` to a transaction.

Versions before 2 do not know PRODUCER_FENCED.
"""

from __future__ import annotations

from flowstone.broker.coordinators.coordinator_lookup import partition_with
from flowstone.broker.coordinators.transaction_answers import told
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.transactions.messages import AddPartitionsRequest
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    try:
        code = await _add(services, request)
    except ApiError as error:
        code = error.code
    return AddOffsetsToTxnResponse(error_code=told(context.api_key, context.api_version, code))


async def _add(services: Services, request: AddOffsetsToTxnRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    offsets = await partition_with(services.groups, request.group_id)
    add = AddPartitionsRequest(
        request.transactional_id, request.producer_id, request.producer_epoch, frozenset((offsets,))
    )
    response = await services.transactions.add_partitions(add)
    code: ErrorCode = response.error_code
    return code
