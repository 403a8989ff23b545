"""The partitions this broker serves, by name and by topic id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition


class Partitions:
    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._names_by_id: dict[bytes, str] = {}
        # Partitions whose logs could not be opened.
        self._offline: dict[TopicPartition, StorageFault] = {}

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def get(self, topic: str, partition: int) -> Partition:
        """Return the partition. Raises ApiError, with the error for the client, if it is not served here."""
        partitions = self._by_name.get(topic)
        found = partitions.get(partition) if partitions is not None else None
        if found is None:
            fault = self._offline.get(TopicPartition(topic, partition)) if self._offline else None
            if fault is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def get_by_id(self, topic_id: bytes, partition: int) -> Partition:
        name = self._names_by_id.get(topic_id)
        if name is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.get(name, partition)

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        return self._by_name.get(topic_partition.topic, {}).get(topic_partition.partition)

    def of_file(self, path: str) -> Partition | None:
        """Return the partition whose log a file belongs to."""
        return next((each for each in self if path.startswith(f"{each.log.path}/")), None)

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._names_by_id.get(topic_id)

    def add(self, partition: Partition) -> None:
        topic, index = partition.topic_partition
        self._by_name.setdefault(topic, {})[index] = partition
        self._names_by_id[partition.topic_id] = topic

    def add_offline(self, topic_partition: TopicPartition, topic_id: bytes, fault: StorageFault) -> None:
        """Add a partition whose log cannot be used; it is offline until the operator repairs it and restarts."""
        self._offline[topic_partition] = fault
        self._names_by_id[topic_id] = topic_partition.topic

    def remove(self, topic_partition: TopicPartition, code: ErrorCode) -> None:
        """Stop serving a partition; waiting requests are answered with `code`."""
        self._offline.pop(topic_partition, None)
        partitions = self._by_name.get(topic_partition.topic)
        if partitions is None or topic_partition.partition not in partitions:
            return
        partition = partitions.pop(topic_partition.partition)
        if not partitions:
            del self._by_name[topic_partition.topic]
            self._names_by_id.pop(partition.topic_id, None)
        partition.close(code)

    def flushed(self, log: PartitionLog) -> None:
        """Record that more of a log has been flushed."""
        topic, index = log.topic_partition
        partitions = self._by_name.get(topic)
        partition = partitions.get(index) if partitions is not None else None
        if partition is not None and partition.log is log:
            partition.flushed()

    def high_watermark_of(self, log: PartitionLog) -> int:
        partition = self.find(log.topic_partition)
        if partition is None or partition.log is not log:  # the log's partition is not served yet
            return log.stored_high_watermark
        return partition.high_watermark.offset

    def leads(self, log: PartitionLog) -> bool:
        """Return whether this broker leads the log's partition now, so that it decides what is deleted from it."""
        partition = self.find(log.topic_partition)
        return partition is not None and partition.log is log and partition.holds_lease

    def fail(self, logs: Iterable[PartitionLog], fault: StorageFault) -> None:
        """Take the partitions of these logs offline, because their log directory failed."""
        for log in logs:
            partition = self.find(log.topic_partition)
            if partition is not None and partition.log is log:
                partition.local.fail(fault)
