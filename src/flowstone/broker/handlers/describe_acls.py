"""DescribeAcls, versions 1 to 3: list the access rules that a filter matches, by resource.

Without an authorizer the ACL APIs answer SECURITY_DISABLED, as in Kafka.
"""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.acl_changes import AclFilter, check_filter
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.image.acl import ALL_OPERATIONS, ALLOW, LITERAL, Acl
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAcl,
    DescribeAclsResponseResource,
)


def check_enabled(services: Services) -> None:
    """Raise ApiError if no authorizer is configured."""
    if services.access is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def audit_fields(rule: Acl) -> dict[str, str]:
    """Return what an audit line says about an access rule."""
    every = rule.operation == ALL_OPERATIONS
    return {
        "rule_principal": rule.principal,
        "rule_host": rule.host,
        "permission": "ALLOW" if rule.permission == ALLOW else "DENY",
        "operation": "ALL" if every else AclOperation(rule.operation).name,
        "resource_type": ResourceType(rule.resource_type).name,
        "resource": rule.resource_name,
        "pattern": "LITERAL" if rule.pattern_type == LITERAL else "PREFIXED",
    }


async def handle(services: Services, context: RequestContext, request: DescribeAclsRequest) -> Message:
    check_enabled(services)
    wanted = AclFilter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    check_filter(wanted)
    slices = TimeSlices(services.clock.monotonic)
    resources: dict[tuple[int, str, int], list[DescribeAclsResponseAcl]] = {}
    elements = 0
    async for rule in slices.over(services.metadata.image.acls):
        if wanted.matches(rule):
            key = (rule.resource_type, rule.resource_name, rule.pattern_type)
            elements += 1
            resources.setdefault(key, []).append(
                DescribeAclsResponseAcl(
                    principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.permission
                )
            )
    response = DescribeAclsResponse(
        resources=[
            DescribeAclsResponseResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls)
            async for (kind, name, pattern), acls in slices.over(resources.items())
        ]
    )
    return await encode_if_long(services, context, response, elements, slices)
