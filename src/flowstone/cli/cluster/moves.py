"""Moves of partitions between brokers: starts, throttles, watches and cancels them for commands.

A throttle is a setting of every broker that is alive. It outlives the command that made it, so the command that watches
the last move end removes it, as Kafka's own tool does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Annotated

import typer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.cluster.state import ClusterReader, check
from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, result_of
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.numbers import THROTTLE_MAX
from flowstone.cli.common.progress import progress_bar
from flowstone.cli.common.text import counted
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionReassignmentsResponse,
)

WATCH_INTERVAL_S = 0.5
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES/S",
        min=1,
        max=THROTTLE_MAX,
        help="Maximum rate at which each broker sends and receives the records of moving partitions.",
    ),
]
THROTTLES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def move(reader: ClusterReader, wanted: dict[TopicPartition, Sequence[int] | None]) -> None:
    """Start the moves, or cancel them where the target is None. Raises CommandError with the first that was refused."""
    topics: dict[str, list[AlterPartitionReassignmentsRequestPartition]] = {}
    for (topic, partition), replicas in wanted.items():
        topics.setdefault(topic, []).append(
            AlterPartitionReassignmentsRequestPartition(partition_index=partition, replicas=replicas)
        )
    request = AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )
    answer = reader.ask(request, AlterPartitionReassignmentsResponse)
    check(answer.error_code, answer.error_message)
    refused = [
        (TopicPartition(topic.name, each.partition_index), each.error_message or ErrorCode(each.error_code).name)
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code and each.error_code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    ]
    if refused:
        first, reason = refused[0]
        begun = f"; {counted(len(wanted) - len(refused), 'other')} did" if len(wanted) > len(refused) else ""
        raise CommandError(f"{counted(len(refused), 'partition')} cannot move: {first}: {reason}{begun}")


def watch(reader: ClusterReader, partitions: Collection[TopicPartition]) -> None:
    """Return when none of the partitions moves any more."""
    pause = threading.Event()
    with progress_bar("moving", len(partitions)) as advance:
        while left := sum(each in partitions for each in reader.moving()):
            advance(len(partitions) - left)
            pause.wait(WATCH_INTERVAL_S)


def throttle(reader: ClusterReader, bytes_per_s: int) -> None:
    _alter_brokers(reader, {name: str(bytes_per_s) for name in THROTTLES})


def unthrottle(reader: ClusterReader) -> None:
    """Remove the throttle if nothing moves any more: another operator's moves may depend on it."""
    if not reader.moving():
        _alter_brokers(reader, dict.fromkeys(THROTTLES))


def _alter_brokers(reader: ClusterReader, values: dict[str, str | None]) -> None:
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    for node_id in reader.read().alive:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id), incremental_configs=entries)
        answers = reader.admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        result_of(answers[resource], reader.bootstrap)
