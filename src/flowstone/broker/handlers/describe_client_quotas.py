"""DescribeClientQuotas, versions 0 and 1: the quotas of the entities that all of the request's filters match."""

from __future__ import annotations

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.quota_changes import QuotaFilter, describe_quotas
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntity,
    DescribeClientQuotasResponseEntry,
    DescribeClientQuotasResponseValue,
)

# There are three types of entities, and each may be named once.
COMPONENTS_MAX = 100


async def handle(services: Services, context: RequestContext, request: DescribeClientQuotasRequest) -> Message:
    if len(request.components) > COMPONENTS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a filter has at most {COMPONENTS_MAX} components")
    filters = [QuotaFilter(each.entity_type, each.match_type, each.match) for each in request.components]
    slices = TimeSlices(services.clock.monotonic)
    entries = []
    async for entity, values in slices.over(describe_quotas(services.metadata.image, filters, strict=request.strict)):
        named = [DescribeClientQuotasResponseEntity(entity_type=kind, entity_name=name) for kind, name in entity]
        told = [DescribeClientQuotasResponseValue(key=key, value=value) for key, value in values.items()]
        entries.append(DescribeClientQuotasResponseEntry(entity=named, values=told))
    response = DescribeClientQuotasResponse(error_message=None, entries=entries)
    return await encode_if_long(services, context, response, 3 * len(entries), slices)
