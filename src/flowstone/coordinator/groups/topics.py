"""The topics of the cluster as groups see them. The broker implements the interface over its metadata."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class GroupTopic(NamedTuple):
    """The properties of a topic that assignments depend on."""

    name: str
    topic_id: bytes
    partition_count: int


class Topics(Protocol):
    @property
    def version(self) -> int:
        """Return a number that changes whenever any topic does."""
        ...

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of the topic, 0 if there is no such topic."""
        ...

    def find(self, name: str) -> GroupTopic | None:
        """Return the topic of that name, or None."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with that id, or None."""
        ...
