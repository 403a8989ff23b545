"""DeleteAcls, versions 1 to 3: remove the access rules that filters match; the response lists them.

Rules that several filters match are listed with the first of them.
"""

from __future__ import annotations

from flowstone.broker.handlers.describe_acls import audit_fields, check_enabled
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.acl_changes import AclFilter, delete_acls
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilterResult,
    DeleteAclsResponseMatchingAcl,
)

# Each filter is compared with every rule.
FILTERS_MAX = 1_000


async def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
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
    results = await change_in_parts(services, filters, delete_acls, weigh=lambda _: 50)
    slices = TimeSlices(services.clock.monotonic)
    client = client_fields(context.session)
    for result in results:
        async for rule in slices.over(result.deleted):
            services.audit("acl.deleted", **client, **audit_fields(rule))
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsResponseFilterResult(
                error_code=result.error,
                error_message=result.message,
                matching_acls=[
                    DeleteAclsResponseMatchingAcl(
                        resource_type=rule.resource_type,
                        resource_name=rule.resource_name,
                        pattern_type=rule.pattern_type,
                        principal=rule.principal,
                        host=rule.host,
                        operation=rule.operation,
                        permission_type=rule.permission,
                    )
                    for rule in result.deleted
                ],
            )
            async for result in slices.over(results)
        ]
    )
