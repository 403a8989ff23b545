"""The topics of the cluster as groups see them. The broker implements the interface over its metadata."""

from __future__ import annotations

from typing import Protocol


class Topics(Protocol):
    def partition_count(self, name: str) -> int:
        """Return the number of partitions of the topic, 0 if there is no such topic."""
        ...
