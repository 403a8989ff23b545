"""Handling, at the start, of moves between log directories that a stop interrupted: see `replica_moves`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flowstone.log.directories import future_replica
from flowstone.log.directories.log_set import DirectoryLogs
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)


def settle(directories: Sequence[DirectoryLogs]) -> dict[TopicPartition, DirectoryLogs]:
    """Undo or complete the moves that a stop interrupted; return the moves to restart, with their target directories.

    Also if there is a single directory now: a copy that serves must not count as unfinished when the directory that it
    came from is there again. Used while the broker starts: waits for the disk.
    """
    wanted = {}
    for directory in directories:
        files = directory.log_directory.files
        for path, topic_partition in future_replica.unfinished(directory.log_directory).items():
            files.remove_tree(path)
            wanted[topic_partition] = directory
        for topic_partition, log in list(directory.logs.items()):
            if not future_replica.is_marked(files, log.path):
                continue
            others = [each for each in directories if each is not directory and each.is_taken(topic_partition)]
            if any(topic_partition in each.logs or not each.offline[topic_partition].is_missing for each in others):
                logger.warning("%s: the interrupted move to %s starts again", topic_partition, directory.path)
                directory.delete(topic_partition)
                wanted[topic_partition] = directory
                continue
            for each in others:  # whose checkpoints still name it
                each.delete(topic_partition)
            future_replica.remove_mark(files, log.path)
    return wanted
