"""DeleteGroups, versions 0 to 2: forgets groups without members, and their offsets."""

from __future__ import annotations

from typing import Any

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.group_answers import answer_all, settle
from flowstone.coordinator.groups import messages
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse, DeleteGroupsResponseResult


def handle(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse | Promise[DeleteGroupsResponse]:
    group_ids = list(dict.fromkeys(request.groups_names))

    return answer_all(
        [_delete(services, group_id) for group_id in group_ids],
        lambda outcomes: DeleteGroupsResponse(
            results=[
                DeleteGroupsResponseResult(group_id=group_id, error_code=_error(group_id, outcome))
                for group_id, outcome in zip(group_ids, outcomes, strict=True)
            ]
        ),
    )


def _delete(services: Services, group_id: str) -> Token:
    return services.groups.request(
        group_id, lambda shard, now_ms, token: shard.delete_groups(now_ms, token, [group_id])
    )


def _error(group_id: str, outcome: Any) -> ErrorCode:
    def deleted(response: messages.DeleteGroupsResponse) -> ErrorCode:
        return response.errors[group_id]

    return settle(outcome, deleted, lambda code: code)
