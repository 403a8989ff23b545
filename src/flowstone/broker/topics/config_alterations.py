"""Changes of settings for AlterConfigs and IncrementalAlterConfigs: many resources, in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.log_levels import alter_log_levels
from flowstone.broker.topics.metadata_changes import PART_WEIGHT, change_in_parts
from flowstone.cluster.decisions.config_changes import (
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    ResourceType,
    alter_configs,
    check_broker_name,
    find_repeated,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode

Answer = TypeVar("Answer")


class AlterRequest(Protocol):
    @property
    def resources(self) -> Sequence[Any]: ...

    @property
    def validate_only(self) -> bool: ...


async def alter_resources(
    services: Services,
    request: AlterRequest,
    operation_of: Callable[[Any], ConfigOperation],
    answer: Callable[..., Answer],
    *,
    replaces_all: bool = False,
) -> list[Answer]:
    """Change the settings of the request's resources; return an answer for each, in order.

    `operation_of` converts one setting of a resource, `answer` is the response's class for a resource. With
    `replaces_all`, values that are not named are removed.
    """
    slices = TimeSlices(services.clock.monotonic)
    alterations = [
        ConfigAlteration(
            resource.resource_type,
            resource.resource_name,
            [operation_of(config) for config in resource.configs],
            replaces_all,
        )
        async for resource in slices.over(request.resources)
    ]
    repeated = find_repeated(alterations)

    def decide(image: ClusterImage, part: Sequence[ConfigAlteration]) -> Decision[list[AlterationResult]]:
        records, results = alter_configs(image, part, services.config, repeated)
        return () if request.validate_only else records, results

    stored = [each for each in alterations if each.resource_type != ResourceType.BROKER_LOGGER]
    stored_results = iter(await change_in_parts(services, stored, decide, weigh=_weigh))
    results = [
        next(stored_results)
        if each.resource_type != ResourceType.BROKER_LOGGER
        else _alter_loggers(services, each, validate_only=request.validate_only)
        for each in alterations
    ]
    return [
        answer(
            error_code=result.error,
            error_message=result.message,
            resource_type=alteration.resource_type,
            resource_name=alteration.resource_name,
        )
        async for alteration, result in slices.over(zip(alterations, results, strict=True))
    ]


def _alter_loggers(services: Services, alteration: ConfigAlteration, *, validate_only: bool) -> AlterationResult:
    """Change the levels of this broker's loggers, which are not stored."""
    try:
        check_broker_name(alteration.resource_name, services.config.node_id)
        if alteration.replaces_all:
            message = "AlterConfigs operation for BROKER_LOGGER is not supported; use IncrementalAlterConfigs"
            raise ApiError(ErrorCode.INVALID_REQUEST, message)
        alter_log_levels(alteration.operations, validate_only=validate_only)
    except ApiError as error:
        return AlterationResult(error.code, error.message)
    return AlterationResult()


def _weigh(alteration: ConfigAlteration) -> int:
    """Return the cost of an alteration: a value for all topics is passed on to each of them."""
    return PART_WEIGHT if alteration.resource_type == ResourceType.BROKER else 1
