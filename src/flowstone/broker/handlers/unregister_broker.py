"""UnregisterBroker, version 0: remove a permanently stopped broker from the cluster's metadata.

Kafka also removes a live broker, and leaves replicas that no broker can serve. Here both are refused: the broker must
be dead, and its replicas must have been moved to others.
"""

from __future__ import annotations

from functools import partial

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.withdrawals import unregister_broker
from flowstone.errors import ApiError
from flowstone.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(
    services: Services, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    try:
        await change(services, partial(unregister_broker, node_id=request.broker_id))
    except ApiError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
