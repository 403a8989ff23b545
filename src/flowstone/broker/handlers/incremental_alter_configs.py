"""IncrementalAlterConfigs, versions 0 and 1: sets, removes, appends to and subtracts from single values."""

from __future__ import annotations

from flowstone.broker.handlers.alter_configs import alter
from flowstone.broker.loop.time_slices import Turns
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.decisions.config_changes import ConfigAlteration, ConfigOperation
from flowstone.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    turns = Turns(services.clock.monotonic)
    alterations = [
        ConfigAlteration(
            resource.resource_type,
            resource.resource_name,
            [ConfigOperation(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        async for resource in turns.over(request.resources)
    ]
    results = await alter(services, alterations, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseResource(
                error_code=result.error,
                error_message=result.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            async for resource, result in turns.over(zip(request.resources, results, strict=True))
        ]
    )
