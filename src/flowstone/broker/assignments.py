"""Keeps the partitions that this broker serves in step with the cluster's metadata.

Called with every change of the metadata. A topic that was made opens its partitions, one that was deleted closes and
removes them, one whose settings changed passes them on. A topic deleted and made again has another id: it is both. The
cost is that of the change, not of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.cluster.configs import topic_config
from flowstone.cluster.image import ClusterImage, TopicImage
from flowstone.cluster.records import TOPIC_RECORDS, BrokerConfigChanged, MetadataRecord
from flowstone.errors import ErrorCode, StorageFault
from flowstone.log.flusher import Flusher
from flowstone.log.manager import LogManager
from flowstone.replication.partition import Partition
from flowstone.replication.partitions import Partitions
from flowstone.types import TopicPartition


class Assignments:
    def __init__(
        self, node_id: int, topic_defaults: dict[str, str], logs: LogManager, flusher: Flusher, partitions: Partitions
    ) -> None:
        self._node_id, self._topic_defaults = node_id, topic_defaults
        self._logs, self._flusher, self._partitions = logs, flusher, partitions

    def open_all(self, image: ClusterImage) -> None:
        for topic in image.topics.values():
            self._open_or_configure(image, topic)

    def follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        if any(isinstance(record, BrokerConfigChanged) for record in records):
            self.open_all(after)  # a broker-wide value may concern every topic
        for topic_id in dict.fromkeys(record.topic_id for record in records if isinstance(record, TOPIC_RECORDS)):
            topic = after.topics_by_id.get(topic_id)
            if topic is not None:
                self._open_or_configure(after, topic)
            elif topic_id in before.topics_by_id:
                self._close(before.topics_by_id[topic_id])

    def _open_or_configure(self, image: ClusterImage, topic: TopicImage) -> None:
        config = topic_config(image, topic.name, self._topic_defaults, self._node_id)
        for index, placed in enumerate(topic.partitions):
            if self._node_id not in placed.replicas:
                continue
            topic_partition = TopicPartition(topic.name, index)
            partition = self._partitions.find(topic_partition)
            if partition is None:
                try:
                    log = self._logs.get_or_create(topic_partition, topic.topic_id, config)
                except StorageFault as fault:
                    self._partitions.add_offline(topic_partition, topic.topic_id, fault)
                    continue
                self._partitions.add(Partition(log, self._flusher, placed.leader_epoch, len(placed.isr)))
            elif partition.log.config != config:
                partition.log.configure(config)
                partition.configured()

    def _close(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            topic_partition = TopicPartition(topic.name, index)
            self._partitions.remove(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._logs.delete(topic_partition)
