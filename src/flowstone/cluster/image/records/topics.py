"""Records about topics, their partitions and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.ids import id_text, parse_id
from flowstone.cluster.image.records.config_values import VALUES, changed_values, value_changes
from flowstone.cluster.image.records.declaration import Form, MetadataRecord, metadata_record, stored


# A partition is stored as a row, not an object: a thousand of them must not repeat five names each.
def _partition_to_json(state: PartitionImage) -> list[Any]:
    row = [state.leader, state.leader_epoch, state.partition_epoch, list(state.replicas), list(state.isr)]
    if state.adding or state.removing:
        row += [list(state.adding), list(state.removing)]
    return row


def _partition_from_json(row: list[Any]) -> PartitionImage:
    leader, leader_epoch, partition_epoch, *brokers = row
    return PartitionImage(leader, leader_epoch, partition_epoch, *map(tuple, brokers))


def _partitions_to_json(partitions: tuple[PartitionImage, ...]) -> list[list[Any]]:
    return [_partition_to_json(each) for each in partitions]


def _partitions_from_json(rows: list[list[Any]]) -> tuple[PartitionImage, ...]:
    return tuple(_partition_from_json(row) for row in rows)


ID = Form(id_text, parse_id)
PARTITION = Form(_partition_to_json, _partition_from_json)
PARTITIONS = Form(_partitions_to_json, _partitions_from_json)


class TopicRecord(MetadataRecord):
    """The base of the records that concern one topic."""

    __slots__ = ()
    topic_id: bytes


@metadata_record()
class TopicDeleted(TopicRecord):
    """A topic was deleted. In a difference, deletions come before creations: a name may have been used again."""

    topic_id: bytes = stored(ID)

    def apply(self, draft: Draft) -> None:
        draft.topics.delete(self.topic_id)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[TopicDeleted]:
        for topic in before.topics.values():
            if topic.topic_id not in after.topics_by_id:
                yield cls(topic.topic_id)


@metadata_record()
class TopicCreated(TopicRecord):
    name: str
    topic_id: bytes = stored(ID)
    partitions: tuple[PartitionImage, ...] = stored(PARTITIONS)
    configs: Mapping[str, str] = stored(VALUES)

    def apply(self, draft: Draft) -> None:
        draft.topics.create(TopicImage(self.name, self.topic_id, self.partitions, self.configs))

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[MetadataRecord]:
        """Yield new topics and, in the same pass, the changes of known ones."""
        known_topics = before.topics_by_id
        for topic in after.topics.values():
            known = known_topics.get(topic.topic_id)
            if known is None:
                yield cls(topic.name, topic.topic_id, topic.partitions, topic.configs)
            elif known is not topic:
                yield from _topic_changes(known, topic)


@metadata_record()
class PartitionsAdded(TopicRecord):
    """More partitions of a topic, numbered on from those it has."""

    topic_id: bytes = stored(ID)
    partitions: tuple[PartitionImage, ...] = stored(PARTITIONS)

    def apply(self, draft: Draft) -> None:
        topic = draft.topics.get(self.topic_id)
        draft.topics.put(replace(topic, partitions=topic.partitions + self.partitions))


@metadata_record()
class PartitionChanged(TopicRecord):
    """A partition's new leader, in-sync replicas or replicas."""

    topic_id: bytes = stored(ID)
    partition: int
    state: PartitionImage = stored(PARTITION)

    def apply(self, draft: Draft) -> None:
        draft.topics.change_partition(self.topic_id, self.partition, self.state)


@metadata_record()
class TopicConfigChanged(TopicRecord):
    """Values of a topic's settings; None removes the topic's own value."""

    topic_id: bytes = stored(ID)
    changes: Mapping[str, str | None] = stored(VALUES)

    def apply(self, draft: Draft) -> None:
        topic = draft.topics.get(self.topic_id)
        draft.topics.put(replace(topic, configs=changed_values(topic.configs, self.changes)))


def _topic_changes(before: TopicImage, after: TopicImage) -> Iterator[TopicRecord]:
    for partition, (known, state) in enumerate(zip(before.partitions, after.partitions, strict=False)):
        if known != state:
            yield PartitionChanged(after.topic_id, partition, state)
    if added := after.partitions[len(before.partitions) :]:
        yield PartitionsAdded(after.topic_id, added)
    if changes := value_changes(before.configs, after.configs):
        yield TopicConfigChanged(after.topic_id, changes)
