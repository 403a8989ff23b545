"""CreateAcls, versions 1 to 3: add access rules. A rule that exists already is no error; an invalid one fails alone.

A rule counts on this broker once the response is sent, and on the others as soon as they have read the metadata log.
"""

from __future__ import annotations

from flowstone.broker.handlers.describe_acls import audit_fields, check_enabled
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.acl_changes import create_acls
from flowstone.cluster.image.acl import Acl
from flowstone.wire.messages import CreateAclsRequest, CreateAclsResponse, CreateAclsResponseResult


async def handle(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    check_enabled(services)
    slices = TimeSlices(services.clock.monotonic)
    rules = [
        Acl(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        async for each in slices.over(request.creations)
    ]
    results = await change_in_parts(services, rules, create_acls)
    client = client_fields(context.session)
    async for rule, result in slices.over(zip(rules, results, strict=True)):
        if not result.error:
            services.audit("acl.created", **client, **audit_fields(rule))
    return CreateAclsResponse(
        results=[
            CreateAclsResponseResult(error_code=each.error, error_message=each.message)
            async for each in slices.over(results)
        ]
    )
