"""FindCoordinator, versions 0 to 6; one key per request up to version 3, many from version 4 on.

A group's coordinator is the leader of its partition of `__consumer_offsets`, which is made when it is first asked for;
while the partition has no leader that is alive, nobody is.
Transactions are refused for good, for a client would otherwise retry for ever; share groups are not served yet.
"""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.partition_lookup import node_endpoints
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_MANY_KEYS_SINCE_VERSION = 4
_SHARE_SINCE_VERSION = 6
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
        node_id = await _group_coordinator(services, key)
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
    if key_type == GROUP:
        return
    if key_type == TRANSACTION:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not served yet.")
    if key_type == SHARE and context.api_version >= _SHARE_SINCE_VERSION:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Share groups are not served yet.")
    message = f"There is no coordinator of type {key_type} in version {context.api_version}."
    raise ApiError(ErrorCode.INVALID_REQUEST, message)


async def _group_coordinator(services: Services, group_id: str) -> int:
    """The broker that has the group. ApiError while there is none."""
    place = services.groups.partition_of(group_id)
    if place is None:
        try:
            await services.groups.create_topic()
        except ApiError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or "") from error
        place = services.groups.partition_of(group_id)
    partition = None if place is None else services.metadata.image.partition(place)
    if partition is None:  # deleted as soon as made
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return partition.leader
