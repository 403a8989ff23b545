"""ListGroups, versions 0 to 5: list this coordinator's groups, filtered by state (since version 4) and type (5)."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.coordinator.groups import messages
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import ListGroupsRequest, ListGroupsResponse, ListGroupsResponseGroup

# Different names in a filter; further ones are ignored.
FILTERS_MAX = 100


async def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> Message:
    asked = messages.ListGroupsRequest(_filter(request.states_filter), _filter(request.types_filter))
    slices = TimeSlices(services.clock.monotonic)
    calls = services.groups.request_each(lambda shard, now_ms, token: shard.list_groups(now_ms, token, asked))
    groups: list[ListGroupsResponseGroup] = []
    for token in [token async for token in slices.over(calls)]:
        outcome = await outcome_of(token)
        if isinstance(outcome, ApiError):
            if outcome.code is ErrorCode.NOT_COORDINATOR:
                continue  # the shard has moved to another broker, which lists its groups
            return ListGroupsResponse(error_code=outcome.code)
        async for some in slices.over(batched(outcome.groups)):
            groups += map(_listed, some)
    return await encode_if_long(services, context, ListGroupsResponse(groups=groups), len(groups), slices)


def _filter(names: Sequence[str]) -> tuple[str, ...]:
    """Return the different names, at most FILTERS_MAX: every shard compares its groups with all of them."""
    return tuple(dict.fromkeys(names))[:FILTERS_MAX]


def _listed(group: messages.ListedGroup) -> ListGroupsResponseGroup:
    return ListGroupsResponseGroup(
        group_id=group.group_id, protocol_type=group.protocol_type, group_state=group.state, group_type=group.type
    )
