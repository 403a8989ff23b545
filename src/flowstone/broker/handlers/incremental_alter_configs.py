"""IncrementalAlterConfigs, versions 0 and 1: set, remove, append to and subtract from single values."""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.config_alterations import alter_resources
from flowstone.cluster.decisions.config_changes import ConfigOperation
from flowstone.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    answers = await alter_resources(services, request, _operation, IncrementalAlterConfigsResponseResource)
    return IncrementalAlterConfigsResponse(responses=answers)


def _operation(config: IncrementalAlterConfigsRequestConfig) -> ConfigOperation:
    return ConfigOperation(config.name, config.config_operation, config.value)
