"""Keeps the partitions that this broker serves in step with the cluster's metadata.

Called with the image before and after every change. A topic that was made opens its partitions, one that was deleted
closes and removes them, one whose settings changed passes them on. A topic deleted and made again has another id: it is
both.
"""

from __future__ import annotations

from flowstone.cluster.configs import topic_config
from flowstone.cluster.image import ClusterImage, TopicImage
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

    def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        for topic_id, topic in before.topics_by_id.items():
            if topic_id not in after.topics_by_id:
                self._close(topic)
        everything_changed = before.broker_configs != after.broker_configs
        for topic_id, topic in after.topics_by_id.items():
            known = before.topics_by_id.get(topic_id)
            if topic is not known or everything_changed:
                self._open_or_configure(after, topic)

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
