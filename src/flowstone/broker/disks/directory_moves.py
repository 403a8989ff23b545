"""Moves of partitions between the log directories of a broker: those requested, and those that a stop interrupted."""

from __future__ import annotations

import posixpath

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.directories.future_replica import future_path
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.log.manager import LogManager
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition


def move_to_directory(logs: LogManager, partitions: Partitions, topic_partition: TopicPartition, path: str) -> None:
    """Begin to move a partition to a log directory of this broker, as Kafka does. Raises ApiError.

    If the partition is there already, a move to another directory ends. If this broker does not have it, it is created
    in the directory when it comes; the client is told NOT_LEADER_OR_FOLLOWER, which such tools expect.
    """
    target = _directory(logs, path)
    if future_path(target.log_directory, topic_partition) is None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
    partition = partitions.find(topic_partition)
    try:
        if partition is None:
            logs.moves.want_in(topic_partition, target)
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker has no replica of {topic_partition}")
        partition.local.check_serving()
        logs.moves.start(partition.log, logs.directory_of(partition.log), target, partition.moved)
    except StorageFault as fault:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(fault)) from fault


def resume_move(logs: LogManager, partition: Partition) -> None:
    """Begin the move of a partition again that the broker's last stop interrupted, if there is one."""
    target = logs.moves.take_wanted(partition.topic_partition)
    if target is not None and target.fault is None:
        logs.moves.start(partition.log, logs.directory_of(partition.log), target, partition.moved)


def _directory(logs: LogManager, path: str) -> DirectoryLogs:
    """Return the log directory with this absolute path. Raises ApiError if there is none, or it has failed."""
    found = next((each for each in logs.directories if posixpath.abspath(each.path) == path), None)
    if found is None and path not in map(posixpath.abspath, logs.unusable):
        raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
    if found is None or found.fault is not None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
    return found
