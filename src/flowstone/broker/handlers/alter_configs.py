"""AlterConfigs, versions 0 to 2: replaces all of a resource's values. Clients should use IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.loop.time_slices import Turns
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import PART_WEIGHT, change_in_parts
from flowstone.cluster.decisions.config_changes import (
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    Operation,
    ResourceType,
    alter_configs,
    find_repeated,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.wire.messages import AlterConfigsRequest, AlterConfigsResponse, AlterConfigsResponseResource


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    turns = Turns(services.clock.monotonic)
    alterations = [
        ConfigAlteration(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, Operation.SET, config.value) for config in resource.configs],
            replaces_all=True,
        )
        async for resource in turns.over(request.resources)
    ]
    results = await alter(services, alterations, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponseResource(
                error_code=result.error,
                error_message=result.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            async for resource, result in turns.over(zip(request.resources, results, strict=True))
        ]
    )


async def alter(
    services: Services, alterations: Sequence[ConfigAlteration], *, validate_only: bool
) -> list[AlterationResult]:
    repeated = find_repeated(alterations)

    def decide(
        image: ClusterImage, part: Sequence[ConfigAlteration]
    ) -> tuple[Sequence[MetadataRecord], list[AlterationResult]]:
        records, results = alter_configs(image, part, services.config.node_id, repeated)
        return () if validate_only else records, results

    return await change_in_parts(services, alterations, decide, weigh=_weigh)


def _weigh(alteration: ConfigAlteration) -> int:
    """A value of all topics is passed on to each of them."""
    return PART_WEIGHT if alteration.resource_type == ResourceType.BROKER else 1
