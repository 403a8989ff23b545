"""ListGroups, versions 0 to 5: list this coordinator's groups, filtered by state (since version 4) and type (5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowstone.broker.coordinators.group_answers import answer_all
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.groups import messages
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import ListGroupsRequest, ListGroupsResponse, ListGroupsResponseGroup

# Different names in a filter; further ones are ignored.
FILTERS_MAX = 100


def handle(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Promise[ListGroupsResponse]:
    asked = messages.ListGroupsRequest(_filter(request.states_filter), _filter(request.types_filter))
    tokens = services.groups.request_all(lambda shard, now_ms, token: shard.list_groups(now_ms, token, asked))
    return answer_all(tokens, _respond)


def _filter(names: Sequence[str]) -> tuple[str, ...]:
    """Return the different names, at most FILTERS_MAX: every shard compares its groups with all of them."""
    return tuple(dict.fromkeys(names))[:FILTERS_MAX]


def _respond(outcomes: Sequence[Any]) -> ListGroupsResponse:
    groups: list[ListGroupsResponseGroup] = []
    for outcome in outcomes:
        if isinstance(outcome, ApiError):
            if outcome.code is ErrorCode.NOT_COORDINATOR:
                continue  # the shard has moved to another broker, which lists its groups
            return ListGroupsResponse(error_code=outcome.code)
        groups += (
            ListGroupsResponseGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.type,
            )
            for group in outcome.groups
        )
    return ListGroupsResponse(groups=groups)
