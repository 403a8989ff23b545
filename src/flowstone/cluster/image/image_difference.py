"""The changes that lead from one image to a later one of the same cluster, for who has missed those that did.

Pure. What they add up to equals the later image but for its version: it had other changes, and perhaps more.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
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


def difference(before: ClusterImage, after: ClusterImage) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    if not before.cluster_id and after.cluster_id:
        records.append(ClusterCreated(after.cluster_id))
    records += [
        BrokerRegistered(broker) for node_id, broker in after.brokers.items() if before.brokers.get(node_id) != broker
    ]
    records += [
        BrokerUnregistered(node_id, broker.epoch)
        for node_id, broker in before.brokers.items()
        if node_id not in after.brokers
    ]
    if after.controller_epoch > before.controller_epoch:
        records.append(ControllerElected(after.controller_id, after.controller_epoch))
    for broker in {**before.broker_configs, **after.broker_configs}:
        if changes := _config_changes(before.broker_configs.get(broker, {}), after.broker_configs.get(broker, {})):
            records.append(BrokerConfigChanged(broker, changes))
    # Those that are gone first: a name may have been used again.
    records += [
        TopicDeleted(topic.topic_id) for topic in before.topics.values() if topic.topic_id not in after.topics_by_id
    ]
    for topic in after.topics.values():
        known = before.topics_by_id.get(topic.topic_id)
        if known is None:
            records.append(TopicCreated(topic.name, topic.topic_id, topic.partitions, topic.configs))
        elif known is not topic:
            records += _topic_changes(known, topic)
    if after.next_producer_id > before.next_producer_id:
        records.append(ProducerIdsReserved(after.next_producer_id))
    return records


def _topic_changes(before: TopicImage, after: TopicImage) -> list[MetadataRecord]:
    records: list[MetadataRecord] = [
        PartitionChanged(after.topic_id, partition, state)
        for partition, (known, state) in enumerate(zip(before.partitions, after.partitions, strict=False))
        if known != state
    ]
    if added := after.partitions[len(before.partitions) :]:
        records.append(PartitionsAdded(after.topic_id, added))
    if changes := _config_changes(before.configs, after.configs):
        records.append(TopicConfigChanged(after.topic_id, changes))
    return records


def _config_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    removed: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
    return removed | {name: value for name, value in after.items() if before.get(name) != value}
