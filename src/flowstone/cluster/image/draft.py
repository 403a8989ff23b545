"""An image while records are applied to it.

`image` is replaced as a whole by a record that changes it. A map that may have thousands of elements is copied with the
first record that changes it (`copied`), a smaller one with each. There are many topics: their changes are collected in
`topics`, and merged into the image's maps once, at the end.

Cost: that of the records, and little more where there are many topics (`layered_map`). Partitions of other topics are
shared, never copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.ids import id_text
from flowstone.cluster.image.layered_map import GONE
from flowstone.errors import StorageFault


class Draft:
    def __init__(self, image: ClusterImage) -> None:
        # Everything except the topics, after the records so far.
        self.image = image
        self.topics = TopicsDraft(image)
        self._copied: set[str] = set()

    def copied(self, field: str) -> dict[Any, Any]:
        """Return the map of the image with this name, as a copy that records change in place."""
        if field not in self._copied:
            self._copied.add(field)
            changes: dict[str, Any] = {field: dict(getattr(self.image, field))}
            self.image = replace(self.image, **changes)
        copy: dict[Any, Any] = getattr(self.image, field)
        return copy

    def finish(self, version: int) -> ClusterImage:
        return self.topics.finish(self.image, version)


class TopicsDraft:
    """The topics of an image being changed: the changed ones, over those of the image before."""

    def __init__(self, before: ClusterImage) -> None:
        self._before = before
        self._topics: dict[str, TopicImage] = {}
        self._topics_by_id: dict[bytes, TopicImage] = {}
        # Topics whose partitions change one by one, as lists: a new tuple for each change would be quadratic.
        self._partitions: dict[bytes, list[PartitionImage]] = {}
        self._partition_count = before.partition_count

    def finish(self, image: ClusterImage, version: int) -> ClusterImage:
        """Return the image with the topics as they are now."""
        for topic_id in tuple(self._partitions):
            self._settle(topic_id)
        if not self._topics:
            return replace(image, version=version)
        return replace(
            image,
            topics=image.topics.changed(self._topics),
            topics_by_id=image.topics_by_id.changed(self._topics_by_id),
            partition_count=self._partition_count,
            version=version,
        )

    def get(self, topic_id: bytes) -> TopicImage:
        """Return the topic as it is now. Raises StorageFault if there is none."""
        self._settle(topic_id)
        topic = self._find(topic_id)
        if topic is None:
            raise StorageFault(f"the metadata log changes the unknown topic {id_text(topic_id)}")
        return topic

    def create(self, topic: TopicImage) -> None:
        """Add a topic. Raises StorageFault if there is one of its name or id."""
        if self._has(topic.name) or self._find(topic.topic_id) is not None:
            raise StorageFault(f"the metadata log makes topic {topic.name} ({id_text(topic.topic_id)}) twice")
        self._partition_count += len(topic.partitions)
        self._store(topic)

    def put(self, topic: TopicImage) -> None:
        """Replace a topic, which `get` has returned, by a changed one."""
        self._partition_count += len(topic.partitions) - len(self.get(topic.topic_id).partitions)
        self._store(topic)

    def delete(self, topic_id: bytes) -> None:
        topic = self.get(topic_id)
        self._topics[topic.name] = self._topics_by_id[topic_id] = GONE
        self._partition_count -= len(topic.partitions)

    def change_partition(self, topic_id: bytes, index: int, state: PartitionImage) -> None:
        """Replace one partition. Raises StorageFault if there is no such one."""
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            partitions = list(self.get(topic_id).partitions)
            self._partitions[topic_id] = partitions
        if not 0 <= index < len(partitions):
            raise StorageFault(
                f"the metadata log changes partition {index} of {self.get(topic_id).name}: there is none"
            )
        partitions[index] = state

    def _settle(self, topic_id: bytes) -> None:
        """Make partitions that were changed one by one part of their topic."""
        partitions = self._partitions.pop(topic_id, None)
        topic = self._find(topic_id)
        if partitions is not None and topic is not None:
            self._store(replace(topic, partitions=tuple(partitions)))

    def _find(self, topic_id: bytes) -> TopicImage | None:
        changed = self._topics_by_id.get(topic_id)
        if changed is None:
            return self._before.topics_by_id.get(topic_id)
        return None if changed is GONE else changed

    def _has(self, name: str) -> bool:
        changed = self._topics.get(name)
        return name in self._before.topics if changed is None else changed is not GONE

    def _store(self, topic: TopicImage) -> None:
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = topic
