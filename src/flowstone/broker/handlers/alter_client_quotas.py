"""AlterClientQuotas, versions 0 and 1: sets and removes quotas of users, client ids and addresses, each entity alone.

A quota counts as soon as the response is sent, for existing connections too.
"""

from __future__ import annotations

from collections import Counter

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change_in_parts
from flowstone.cluster.decisions.quota_changes import QuotaAlteration, QuotaResult, alter_quotas
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntity,
    AlterClientQuotasResponseEntry,
)


async def handle(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    slices = TimeSlices(services.clock.monotonic)
    alterations = [_alteration(entry) async for entry in slices.over(request.entries)]
    times = Counter(frozenset(each.entity) for each in alterations)

    def decide(image: ClusterImage, part: list[QuotaAlteration]) -> Decision[list[QuotaResult]]:
        records, results = alter_quotas(image, [each for each in part if times[frozenset(each.entity)] == 1])
        told = iter(results)
        repeated = QuotaResult(ErrorCode.INVALID_REQUEST, "Each entity must appear once in a request.")
        every = [next(told) if times[frozenset(each.entity)] == 1 else repeated for each in part]
        return () if request.validate_only else records, every

    results = await change_in_parts(services, alterations, decide)
    client = client_fields(context.session)
    entries = []
    async for alteration, result in slices.over(zip(alterations, results, strict=True)):
        if not result.error and not request.validate_only:
            entity = {kind: "<default>" if name is None else name for kind, name in alteration.entity}
            services.audit("quota.changed", **client, entity=entity, quotas=dict(alteration.changes))
        entries.append(
            AlterClientQuotasResponseEntry(
                error_code=result.error,
                error_message=result.message,
                entity=[
                    AlterClientQuotasResponseEntity(entity_type=kind, entity_name=name)
                    for kind, name in alteration.entity
                ],
            )
        )
    return AlterClientQuotasResponse(entries=entries)


def _alteration(entry: AlterClientQuotasRequestEntry) -> QuotaAlteration:
    entity = [(each.entity_type, each.entity_name) for each in entry.entity]
    return QuotaAlteration(entity, {each.key: None if each.remove else each.value for each in entry.ops})
