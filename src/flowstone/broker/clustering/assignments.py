"""Opens, configures and closes the partitions of this broker, as the cluster's metadata says.

`Assignments.follow` runs with every change of the metadata. It opens the partitions of a created topic, closes and
removes those of a deleted one, and passes on changed settings, leaders and followers. A topic that was deleted and
created again has another id, so it is handled as both; if its name is not free yet (`LogManager.free_name`), its
partitions are opened once it is. In a cluster, partitions that were moved to other brokers are removed from here. The
cost of a change depends on its size, not on that of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING

from flowstone.broker.disks.directory_moves import resume_move
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.cluster.decisions.configs import topic_config
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage, TopicImage
from flowstone.cluster.image.records import BrokerConfigChanged, MetadataRecord, TopicRecord
from flowstone.cluster.logs.metadata_copies import DIRECTORY as METADATA_DIRECTORY
from flowstone.config import TOPIC_SETTINGS, TopicConfig
from flowstone.errors import ErrorCode, StartupError, StorageFault
from flowstone.log.manager import LogManager
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from flowstone.broker.clustering.cluster_node import Clustering

logger = logging.getLogger(__name__)

# Partitions opened and closed before other work on the event loop may run: each takes 20 to 50 microseconds.
PARTITIONS_AT_ONCE = 200


class Assignments:
    def __init__(
        self,
        node_id: int,
        topic_defaults: dict[str, str],
        logs: LogManager,
        partitions: Partitions,
        cluster: Clustering | None = None,
    ) -> None:
        """Follow the cluster's metadata; `cluster` is None on a broker that is no member of a cluster."""
        self._node_id, self._topic_defaults = node_id, topic_defaults
        self._logs, self._partitions = logs, partitions
        self._reported_settings: set[str] = set()  # without effect, and logged
        self._cluster = cluster
        self._image = EMPTY_IMAGE
        # Partitions still to be opened and closed, in order, in later time slices.
        self._later: deque[Callable[[], None]] = deque()
        self._left = PARTITIONS_AT_ONCE
        self._working: asyncio.Task[None] | None = None

    def open_all(self, image: ClusterImage, deleted_topic_ids: Container[bytes] | None = None) -> None:
        """Open this broker's partitions at the start, and delete partitions of deleted topics that a crash left.

        `deleted_topic_ids` are the topics that the metadata log is known to delete. Other topics may be missing because
        the log has lost its end. None in a cluster, whose metadata is on other disks too.

        Raises StartupError if there are logs but no topic in the metadata: the metadata was lost, and all logs would be
        deleted.
        """
        self._image = image
        if not image.cluster_id and (self._logs.logs or self._logs.offline):
            raise StartupError(
                f"the data directory {', '.join(each.path for each in self._logs.directories)} holds "
                f"{len(self._logs.logs) + len(self._logs.offline)} "
                f"partitions, but its metadata log contains no topic; restore {METADATA_DIRECTORY} from a backup, or "
                "move the partitions elsewhere"
            )
        self._logs.delete_strays(image.topics_by_id, deleted_topic_ids)
        self._delete_moved()
        self._logs.expect(
            (TopicPartition(topic.name, index), topic.topic_id)
            for topic in image.topics.values()
            for index, placed in enumerate(topic.partitions)
            if self._node_id in placed.replicas
        )
        self._left = sys.maxsize
        self._open_or_configure_all()

    def _delete_moved(self) -> None:
        """Delete the partitions that were moved to other brokers while this one was away."""
        for topic_partition in list(self._logs.logs):
            placed = self._image.partition(topic_partition)
            if placed is not None and self._node_id not in placed.replicas:
                self._remove(topic_partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Open, configure and close the partitions that a change concerns, in several slices if they are many.

        `settled` waits for those.
        """
        self._image = after
        self._left = PARTITIONS_AT_ONCE
        if any(isinstance(record, BrokerConfigChanged) for record in records):
            # A broker-wide value may concern every topic.
            self._later.extend(partial(self._configure, topic_id) for topic_id in after.topics_by_id)
        for topic_id in dict.fromkeys(record.topic_id for record in records if isinstance(record, TopicRecord)):
            topic = after.topics_by_id.get(topic_id)
            if topic is not None:
                self._open_or_configure(topic)
            elif topic_id in before.topics_by_id:
                self._close(before.topics_by_id[topic_id])
        if self._later and self._working is None:
            self._working = asyncio.ensure_future(self._work())

    async def settled(self) -> None:
        """Wait until all partitions are opened and closed that the changes so far concern."""
        if self._working is not None:
            await asyncio.shield(self._working)

    def stop(self) -> None:
        """Drop pending openings and closings of partitions: the broker stops, and its next start does them."""
        self._later.clear()

    async def _work(self) -> None:
        while self._later:
            for _ in range(min(PARTITIONS_AT_ONCE, len(self._later))):
                self._later.popleft()()
            await yield_to_loop()
        self._working = None

    def _do(self, action: Callable[[], None]) -> None:
        """Run an action now, or later if many have run in this time slice."""
        if self._left > 0 and not self._later:
            self._left -= 1
            action()
        else:
            self._later.append(action)

    def _open_or_configure_all(self) -> None:
        for topic in self._image.topics.values():
            self._open_or_configure(topic)

    def _configure(self, topic_id: bytes) -> None:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is not None:  # not deleted since
            self._open_or_configure(topic)

    def _open_or_configure(self, topic: TopicImage) -> None:
        config = topic_config(self._image, topic.name, self._topic_defaults, self._node_id)
        if topic.configs:
            self._report_idle_settings(topic)
        for index, placed in enumerate(topic.partitions):
            partition = self._partitions.find(TopicPartition(topic.name, index))
            if self._node_id not in placed.replicas:
                if partition is not None:
                    self._remove(partition.topic_partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                continue
            if partition is None or partition.topic_id != topic.topic_id:
                self._do(partial(self._open_unless_open, topic.topic_id, index, config))
                continue
            if partition.partition_epoch != placed.partition_epoch:
                partition.update(placed, self._node_id)
                self._placed(partition)
            if partition.log.config != config:
                partition.log.configure(config)
                partition.configured()

    def _report_idle_settings(self, topic: TopicImage) -> None:
        """Log once for each setting of Kafka that a topic has and that changes nothing here."""
        for name in topic.configs:
            if name in TOPIC_SETTINGS and not TOPIC_SETTINGS[name].has_effect and name not in self._reported_settings:
                self._reported_settings.add(name)
                logger.info("topic %s sets %s, which this broker stores but which has no effect", topic.name, name)

    def _open(self, topic: TopicImage, index: int, config: TopicConfig) -> None:
        topic_partition, placed = TopicPartition(topic.name, index), topic.partitions[index]
        try:
            if self._cluster is not None and self._node_id not in placed.isr:
                self._logs.give_up_missing(topic_partition)
            freed = self._logs.free_name(topic_partition, topic.topic_id)
            if freed is not None:
                freed.add_done_callback(partial(self._open_later, topic.topic_id, index))
                return
            log = self._logs.get_or_create(topic_partition, topic.topic_id, config)
        except StorageFault as fault:
            self._partitions.add_offline(topic_partition, topic.topic_id, fault)
            if self._cluster is not None:
                self._cluster.replicas.failed(topic.topic_id, topic_partition)
        else:
            flusher = self._logs.directory_of(log).flusher
            services = self._cluster.services if self._cluster is not None else None
            partition = Partition(log, flusher, placed, self._node_id, services, on_fault=self._failed)
            self._partitions.add(partition)
            self._placed(partition)
            resume_move(self._logs, partition)

    def _placed(self, partition: Partition) -> None:
        if self._cluster is not None:
            self._cluster.replicas.placed(partition)

    def _failed(self, log: PartitionLog, fault: StorageFault) -> None:
        """Report a partition that went offline to the cluster, and have its log directory checked."""
        if self._cluster is not None:
            self._cluster.replicas.failed(log.topic_id, log.topic_partition)
        self._logs.doubt(log, fault)

    def _open_later(self, topic_id: bytes, index: int, freed: asyncio.Future[None]) -> None:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or freed.cancelled():  # deleted again, or the broker stops
            return
        config = topic_config(self._image, topic.name, self._topic_defaults, self._node_id)
        self._open_unless_open(topic_id, index, config)

    def _open_unless_open(self, topic_id: bytes, index: int, config: TopicConfig) -> None:
        topic = self._image.topics_by_id.get(topic_id)
        if topic is None or self._node_id not in topic.partitions[index].replicas:  # deleted or moved since
            return
        if self._partitions.find(TopicPartition(topic.name, index)) is None:
            self._open(topic, index, config)

    def _close(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            closed = TopicPartition(topic.name, index)
            self._do(partial(self._remove, closed, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    def _remove(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        partition = self._partitions.find(topic_partition)
        if partition is not None and self._cluster is not None:
            self._cluster.replicas.removed(partition)
        self._partitions.remove(topic_partition, code)
        try:
            self._logs.delete(topic_partition)
        except StorageFault as fault:  # the topic is gone all the same; the next start tries again
            logger.error("%s", fault)
