"""From records to an image, and from an image back to the records that make it.

`apply` is pure and deterministic: every broker that has applied the same records holds an equal image. A record that
does not fit the image (a topic made twice, a change to an unknown one) means a damaged log and raises `StorageFault`.

Cost: that of the records, and little more where there are many topics (`layered_map`); partitions of other topics are
shared, never copied. `snapshot` gives at most as many records as the image has applied, so that a compacted log can end
at the offset at which the long one ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from flowstone.cluster.image.ids import id_text
from flowstone.cluster.image.layered_map import GONE
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ClusterCreated,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from flowstone.errors import StorageFault


def apply(image: ClusterImage, records: Iterable[MetadataRecord]) -> ClusterImage:
    draft = _Draft(image)
    for record in records:
        draft.apply(record)
    return draft.finish()


def snapshot(image: ClusterImage) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    if image.cluster_id:
        records.append(ClusterCreated(image.cluster_id))
    records += [BrokerRegistered(broker) for broker in image.brokers.values()]
    if image.controller_epoch:
        records.append(ControllerElected(image.controller_id, image.controller_epoch))
    records += [BrokerConfigChanged(broker, dict(configs)) for broker, configs in image.broker_configs.items()]
    records += [
        TopicCreated(topic.name, topic.topic_id, topic.partitions, topic.configs) for topic in image.topics.values()
    ]
    if image.next_producer_id:
        records.append(ProducerIdsReserved(image.next_producer_id))
    assert len(records) <= image.version + 1
    return records


class _Draft:
    """An image being changed. A small map is copied when it is first written to; of topics only changes are here."""

    def __init__(self, image: ClusterImage) -> None:
        self._before = image
        self._cluster_id = image.cluster_id
        self._brokers: dict[int, BrokerImage] | None = None
        self._topics: dict[str, TopicImage] = {}
        self._topics_by_id: dict[bytes, TopicImage] = {}
        # Of topics whose partitions change one by one: a tuple made anew for each would be quadratic.
        self._partitions: dict[bytes, list[PartitionImage]] = {}
        self._broker_configs: dict[str, Mapping[str, str]] | None = None
        self._next_producer_id = image.next_producer_id
        self._controller = image.controller_id, image.controller_epoch
        self._partition_count = image.partition_count
        self._version = image.version

    def finish(self) -> ClusterImage:
        before = self._before
        for topic_id in tuple(self._partitions):
            self._settle(topic_id)
        return ClusterImage(
            cluster_id=self._cluster_id,
            brokers=before.brokers if self._brokers is None else self._brokers,
            topics=before.topics.changed(self._topics) if self._topics else before.topics,
            topics_by_id=before.topics_by_id.changed(self._topics_by_id) if self._topics else before.topics_by_id,
            broker_configs=before.broker_configs if self._broker_configs is None else self._broker_configs,
            next_producer_id=self._next_producer_id,
            controller_id=self._controller[0],
            controller_epoch=self._controller[1],
            partition_count=self._partition_count,
            version=self._version,
        )

    def apply(self, record: MetadataRecord) -> None:
        match record:
            case ClusterCreated(cluster_id):
                if self._cluster_id:
                    raise StorageFault(f"the metadata log makes cluster {cluster_id} within cluster {self._cluster_id}")
                self._cluster_id = cluster_id
            case BrokerRegistered(broker):
                self._changed_brokers()[broker.node_id] = broker
            case BrokerFenced(node_id, epoch):
                broker = self._broker(node_id, epoch)
                self._changed_brokers()[node_id] = dataclasses.replace(broker, is_fenced=True)
            case BrokerUnregistered(node_id, epoch):
                self._broker(node_id, epoch)
                del self._changed_brokers()[node_id]
            case ControllerElected(node_id, epoch):
                if epoch <= self._controller[1]:
                    raise StorageFault(f"the metadata log elects a controller with the used epoch {epoch}")
                self._controller = node_id, epoch
            case TopicCreated(name, topic_id, partitions, configs):
                self._create_topic(TopicImage(name, topic_id, partitions, configs))
            case TopicDeleted(topic_id):
                self._delete_topic(topic_id)
            case PartitionsAdded(topic_id, partitions):
                topic = self._topic(topic_id)
                self._partition_count += len(partitions)
                self._put(dataclasses.replace(topic, partitions=topic.partitions + partitions))
            case PartitionChanged(topic_id, partition, state):
                self._change_partition(topic_id, partition, state)
            case TopicConfigChanged(topic_id, changes):
                topic = self._topic(topic_id)
                self._put(dataclasses.replace(topic, configs=_changed(topic.configs, changes)))
            case BrokerConfigChanged(name, changes):
                self._change_broker_config(name, changes)
            case ProducerIdsReserved(next_producer_id):
                if next_producer_id < self._next_producer_id:
                    raise StorageFault(f"the metadata log takes back producer ids from {next_producer_id} on")
                self._next_producer_id = next_producer_id
        self._version += 1

    def _broker(self, node_id: int, epoch: int) -> BrokerImage:
        broker = self._changed_brokers().get(node_id)
        if broker is None or broker.epoch != epoch:
            raise StorageFault(f"the metadata log ends the life of the unknown broker {node_id} of epoch {epoch}")
        return broker

    def _changed_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._before.brokers)
        return self._brokers

    def _change_partition(self, topic_id: bytes, index: int, state: PartitionImage) -> None:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            partitions = list(self._topic(topic_id).partitions)
            self._partitions[topic_id] = partitions
        if not 0 <= index < len(partitions):
            name = self._topic(topic_id).name
            raise StorageFault(f"the metadata log changes partition {index} of {name}: there is none")
        partitions[index] = state

    def _settle(self, topic_id: bytes) -> None:
        """Partitions that were changed become part of their topic."""
        partitions = self._partitions.pop(topic_id, None)
        topic = self._find_topic(topic_id)
        if partitions is not None and topic is not None:
            self._put(dataclasses.replace(topic, partitions=tuple(partitions)))

    def _topic(self, topic_id: bytes) -> TopicImage:
        self._settle(topic_id)
        topic = self._find_topic(topic_id)
        if topic is None:
            raise StorageFault(f"the metadata log changes the unknown topic {id_text(topic_id)}")
        return topic

    def _find_topic(self, topic_id: bytes) -> TopicImage | None:
        changed = self._topics_by_id.get(topic_id)
        if changed is None:
            return self._before.topics_by_id.get(topic_id)
        return None if changed is GONE else changed

    def _has_topic(self, name: str) -> bool:
        changed = self._topics.get(name)
        return name in self._before.topics if changed is None else changed is not GONE

    def _put(self, topic: TopicImage) -> None:
        self._topics[topic.name] = self._topics_by_id[topic.topic_id] = topic

    def _create_topic(self, topic: TopicImage) -> None:
        if self._has_topic(topic.name) or self._find_topic(topic.topic_id) is not None:
            raise StorageFault(f"the metadata log makes topic {topic.name} ({id_text(topic.topic_id)}) twice")
        self._partition_count += len(topic.partitions)
        self._put(topic)

    def _delete_topic(self, topic_id: bytes) -> None:
        topic = self._topic(topic_id)
        self._topics[topic.name] = self._topics_by_id[topic_id] = GONE
        self._partition_count -= len(topic.partitions)

    def _change_broker_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        if self._broker_configs is None:
            self._broker_configs = dict(self._before.broker_configs)
        configs = _changed(self._broker_configs.pop(name, {}), changes)
        if configs:
            self._broker_configs[name] = configs


def _changed(values: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    merged = {**values, **changes}
    return {name: value for name, value in merged.items() if value is not None}
