"""AlterConfigs, versions 0 to 2: replace all values of resources. IncrementalAlterConfigs supersedes it."""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.config_alterations import alter_resources
from flowstone.cluster.decisions.config_changes import ConfigOperation, Operation
from flowstone.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsResponse,
    AlterConfigsResponseResource,
)


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    answers = await alter_resources(services, request, _operation, AlterConfigsResponseResource, replaces_all=True)
    return AlterConfigsResponse(responses=answers)


def _operation(config: AlterConfigsRequestConfig) -> ConfigOperation:
    return ConfigOperation(config.name, Operation.SET, config.value)
