"""AlterConfigs, versions 0 to 2: replaces all of a resource's values. Clients should use IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.changes import change
from flowstone.broker.context import RequestContext, Services
from flowstone.cluster.config_changes import (
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    Operation,
    alter_configs,
)
from flowstone.cluster.image import ClusterImage
from flowstone.cluster.records import MetadataRecord
from flowstone.wire.messages import AlterConfigsRequest, AlterConfigsResponse, AlterConfigsResponseResource


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    alterations = [
        ConfigAlteration(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, Operation.SET, config.value) for config in resource.configs],
            replaces_all=True,
        )
        for resource in request.resources
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
            for resource, result in zip(request.resources, results, strict=True)
        ]
    )


async def alter(
    services: Services, alterations: Sequence[ConfigAlteration], *, validate_only: bool
) -> list[AlterationResult]:
    def decide(image: ClusterImage) -> tuple[Sequence[MetadataRecord], list[AlterationResult]]:
        records, results = alter_configs(image, alterations, services.config.node_id)
        return () if validate_only else records, results

    return await change(services, decide)
