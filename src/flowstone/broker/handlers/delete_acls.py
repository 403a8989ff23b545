"""DeleteAcls, versions 1 to 3: remove the access rules that filters match; the response lists them.

Rules that several filters match are listed with the first of them. Rules are found first and deleted then, some at a
time: there may be a hundred thousand, and a thousand filters.
"""

from __future__ import annotations

from typing import Any

from flowstone.broker.handlers.describe_acls import audit_fields, check_enabled
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.acl_changes import AclFilter, DeletionResult, delete_rules, find_rules
from flowstone.cluster.image.acl import Acl
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilterResult,
    DeleteAclsResponseMatchingAcl,
)

# Each filter is compared with every rule.
FILTERS_MAX = 1_000


async def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> Message:
    check_enabled(services)
    if len(request.filters) > FILTERS_MAX:
        message = f"{len(request.filters)} filters in one request; the limit is {FILTERS_MAX}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    filters = [
        AclFilter(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        for each in request.filters
    ]
    slices = TimeSlices(services.clock.monotonic)
    # The image is never changed in place: rules that others create meanwhile are not found.
    results = await run_in_slices(find_rules(services.metadata.image.acls, filters), slices)
    found = [rule async for result in slices.over(results) for rule in result.deleted]
    deleted = await change_in_parts(services, found, delete_rules)
    # Another client may have deleted some since they were found.
    gone = {rule for rule, is_deleted in zip(found, deleted, strict=True) if not is_deleted}
    client = client_fields(context.session)
    response = DeleteAclsResponse(
        filter_results=[await _told(services, client, result, gone, slices) for result in results]
    )
    return await encode_if_long(services, context, response, len(filters) + len(found), slices)


async def _told(
    services: Services, client: dict[str, Any], result: DeletionResult, gone: set[Acl], slices: TimeSlices
) -> DeleteAclsResponseFilterResult:
    matching: list[DeleteAclsResponseMatchingAcl] = []
    async for rule in slices.over(result.deleted):
        if rule in gone:
            continue
        services.audit("acl.deleted", **client, **audit_fields(rule))
        matching.append(
            DeleteAclsResponseMatchingAcl(
                resource_type=rule.resource_type,
                resource_name=rule.resource_name,
                pattern_type=rule.pattern_type,
                principal=rule.principal,
                host=rule.host,
                operation=rule.operation,
                permission_type=rule.permission,
            )
        )
    return DeleteAclsResponseFilterResult(error_code=result.error, error_message=result.message, matching_acls=matching)
