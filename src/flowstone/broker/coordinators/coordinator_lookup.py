"""Lookup of the internal partition that has a key's state; creates the internal topic on the first request."""

from __future__ import annotations

from typing import Protocol

from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition


class LocatesKeys(Protocol):
    """The part of a coordinator that finds the partition of a key."""

    def partition_of(self, key: str, /) -> TopicPartition | None: ...

    async def create_topic(self) -> None: ...


async def partition_with(coordinator: LocatesKeys, key: str) -> TopicPartition:
    """Return the partition that has the key's state. Raises ApiError if its topic cannot be created."""
    place = coordinator.partition_of(key)
    if place is None:
        try:
            await coordinator.create_topic()
        except ApiError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or "") from error
        place = coordinator.partition_of(key)
    if place is None:  # deleted as soon as made
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return place
