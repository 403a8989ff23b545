"""Backup and restore of consumer groups' offsets, over Kafka's protocol and thus for any broker.

A backup reads the offsets before the records, so that none is beyond the backup's end. A restore commits them only on
request: a group that continues from an old offset reads again what it has read since.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from flowstone.cli.backup.backup_files import BackupGroup, BackupOffset, BackupTopic
from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, explain, result_of
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.text import counted
from flowstone.cli.group.reading import GroupReader


def read_groups(admin: AdminClient, bootstrap: str, topics: Sequence[str]) -> dict[str, list[BackupGroup]]:
    """Return, by topic, the groups that have committed offsets in it, sorted by name."""
    found: dict[str, list[BackupGroup]] = {topic: [] for topic in topics}
    asked = {
        group_id: admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id)], request_timeout=REQUEST_TIMEOUT_S
        )[group_id]
        for group_id in GroupReader(admin, bootstrap).names()
    }
    for group_id, future in asked.items():
        offsets: dict[str, list[BackupOffset]] = {}
        for each in result_of(future, bootstrap).topic_partitions:
            if each.topic in found and each.offset >= 0:
                offsets.setdefault(each.topic, []).append(BackupOffset(each.partition, each.offset))
        for topic, committed in offsets.items():
            found[topic].append(BackupGroup(group_id, sorted(committed, key=lambda offset: offset.partition)))
    return found


def check_groups(admin: AdminClient, bootstrap: str, topics: Sequence[BackupTopic]) -> None:
    """Raise CommandError if a group has members, because they control its offsets."""
    reader = GroupReader(admin, bootstrap)
    for group_id in sorted({group.group_id for topic in topics for group in topic.groups}):
        group = reader.find(group_id)
        if group is not None and group.members:
            members = counted(len(group.members), "member")
            raise CommandError(f"group {group_id} has {members}: stop them first, or restore without --groups")


def restore_groups(admin: AdminClient, bootstrap: str, topic: BackupTopic, name: str) -> None:
    """Commit the backup's offsets in the restored topic, which may have another name."""
    for group in topic.groups:
        offsets = [ClientPartition(name, each.partition, each.offset) for each in group.offsets]
        request = ConsumerGroupTopicPartitions(group.group_id, offsets)
        future = admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)[group.group_id]
        for each in result_of(future, bootstrap).topic_partitions:
            if each.error is not None:
                raise explain(each.error, bootstrap)
