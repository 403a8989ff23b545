"""The group setting that a queue needs: where a new group begins.

Share groups skip what was written before their first fetch (`share.auto.offset.reset=latest`). A work queue should not:
unless the group has a value of its own, the queue sets it.
"""

from __future__ import annotations

import logging

from flowstone.client.errors import ClientError, refusal
from flowstone.queues.connections import Connections
from flowstone.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
)

logger = logging.getLogger(__name__)

RESET = "share.auto.offset.reset"
GROUP_RESOURCE, GROUP_SOURCE, SET = 32, 8, 0


async def begin_at(connections: Connections, group: str, begin: str) -> None:
    """Set where the group begins unless it is set; a refusal is logged."""
    try:
        resource = DescribeConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[RESET]
        )
        answer = await connections.ask_any(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
        for result in answer.results:
            if result.error_code:
                raise refusal(result.error_code, f"group {group}", result.error_message)
            if any(each.name == RESET and each.config_source == GROUP_SOURCE for each in result.configs):
                return
        change = IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE,
            resource_name=group,
            configs=[IncrementalAlterConfigsRequestConfig(name=RESET, config_operation=SET, value=begin)],
        )
        altered = await connections.ask_any(
            IncrementalAlterConfigsRequest(resources=[change]), IncrementalAlterConfigsResponse
        )
        for response in altered.responses:
            if response.error_code:
                raise refusal(response.error_code, f"group {group}", response.error_message)
    except ClientError as error:
        logger.warning("%s of group %s cannot be set to %s: %s", RESET, group, begin, error)
