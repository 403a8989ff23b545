"""FindCoordinator, versions 0 to 6; one key per request up to version 3, many from version 4 on.

A group's coordinator is the leader of its partition of `__consumer_offsets`, and a transactional id's the leader of its
partition of `__transaction_state`. The topics are created when they are first asked for. While the partition has no
live leader, there is no coordinator. A share
partition's state has its coordinator too: the leader of its partition of `__share_group_state`.
"""

from __future__ import annotations

from flowstone.broker.coordinators.coordinator_lookup import LocatesKeys, partition_with
from flowstone.broker.coordinators.share.share_coordinator import check_share_key
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import node_endpoints
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_MANY_KEYS_SINCE_VERSION = 4
_SHARE_SINCE_VERSION = 6
_TRANSACTION_SINCE_VERSION = 1
_NO_NODE, _NO_PORT = -1, -1


async def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.api_version >= _MANY_KEYS_SINCE_VERSION:
        slices = TimeSlices(services.clock.monotonic)
        found = [
            await _find(services, context, request.key_type, key) async for key in slices.over(request.coordinator_keys)
        ]
        return FindCoordinatorResponse(coordinators=found)
    only = await _find(services, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _find(
    services: Services, context: RequestContext, key_type: int, key: str
) -> FindCoordinatorResponseCoordinator:
    try:
        _check_type(context, key_type)
        place = await partition_with(_coordinator(services, key_type, key), key)
        node_id = _leader(services, place)
        reachable = node_endpoints(services.metadata.image, (node_id,), context.session.listener_name)
        if not reachable:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    except ApiError as error:
        return FindCoordinatorResponseCoordinator(
            key=key, node_id=_NO_NODE, port=_NO_PORT, error_code=error.code, error_message=error.message
        )
    return FindCoordinatorResponseCoordinator(
        key=key,
        node_id=node_id,
        host=reachable[0].host,
        port=reachable[0].port,
        error_code=ErrorCode.NONE,
        error_message="",
    )


def _check_type(context: RequestContext, key_type: int) -> None:
    if key_type == GROUP or (key_type == TRANSACTION and context.api_version >= _TRANSACTION_SINCE_VERSION):
        return
    if key_type == SHARE and context.api_version >= _SHARE_SINCE_VERSION:
        return
    message = f"There is no coordinator of type {key_type} in version {context.api_version}."
    raise ApiError(ErrorCode.INVALID_REQUEST, message)


def _coordinator(services: Services, key_type: int, key: str) -> LocatesKeys:
    """Return the coordinator of a type. Raises ApiError if the key is none of a share partition."""
    if key_type == SHARE:
        check_share_key(key)
        return services.share_states.coordinator
    return services.groups if key_type == GROUP else services.transactions


def _leader(services: Services, place: TopicPartition) -> int:
    """Return the broker that leads the partition. Raises ApiError if it was deleted meanwhile."""
    partition = services.metadata.image.partition(place)
    if partition is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return partition.leader
