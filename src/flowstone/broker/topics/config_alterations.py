"""Changes of settings for AlterConfigs and IncrementalAlterConfigs: many resources, in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.metadata_changes import PART_WEIGHT, change_in_parts
from flowstone.cluster.decisions.config_changes import (
    AlterationResult,
    ConfigAlteration,
    ConfigOperation,
    ResourceType,
    alter_configs,
    find_repeated,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision

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

    results = await change_in_parts(services, alterations, decide, weigh=_weigh)
    return [
        answer(
            error_code=result.error,
            error_message=result.message,
            resource_type=alteration.resource_type,
            resource_name=alteration.resource_name,
        )
        async for alteration, result in slices.over(zip(alterations, results, strict=True))
    ]


def _weigh(alteration: ConfigAlteration) -> int:
    """Return the cost of an alteration: a value for all topics is passed on to each of them."""
    return PART_WEIGHT if alteration.resource_type == ResourceType.BROKER else 1
