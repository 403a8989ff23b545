"""End markers on their way to another broker: what is sent, and the error code of each marker in the response.

`QueuedMarker` is one marker in one partition, `MarkerJob` all markers of a decided transaction. A request that was sent
is a `MarkersInFlight`: markers may be taken out of it while it waits for its response, because their partitions have
another leader by then.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flowstone.broker.coordinators.local_markers import Marker
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.transactions.messages import SendMarkers
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarker,
    WriteTxnMarkersRequestTopic,
    WriteTxnMarkersResponse,
)


@dataclass(slots=True, eq=False)
class MarkerJob:
    """A task of a shard's state machine, with the shard to notify and the number of markers still to be written."""

    shard: HostedShard[TransactionShard]
    task: SendMarkers
    unwritten: int

    @property
    def marker(self) -> Marker:
        task = self.task
        return Marker(
            task.producer_id, task.producer_epoch, task.coordinator_epoch, task.is_commit, task.transaction_version
        )


class QueuedMarker(NamedTuple):
    job: MarkerJob
    where: TopicPartition

    @property
    def key(self) -> tuple[TopicPartition, int]:
        return self.where, self.job.task.producer_id


class MarkersInFlight:
    """A WriteTxnMarkers request that was sent to another broker, until its response comes or it is given up."""

    __slots__ = ("_asking", "_groups", "_missing", "is_given_up")

    def __init__(self, batch: Sequence[QueuedMarker]) -> None:
        self._groups = by_job(batch)
        self._missing = dict.fromkeys(batch)
        self._asking: asyncio.Future[WriteTxnMarkersResponse] | None = None
        self.is_given_up = False

    @property
    def missing(self) -> list[QueuedMarker]:
        """The markers whose error codes are still wanted from the response."""
        return [*self._missing]

    def request(self) -> WriteTxnMarkersRequest:
        return WriteTxnMarkersRequest(markers=[_marker_of(group) for group in self._groups])

    def sent(self, asking: asyncio.Future[WriteTxnMarkersResponse]) -> None:
        """Record that the request waits for its response."""
        self._asking = asking

    def take_out(self, markers: Iterable[QueuedMarker]) -> None:
        """Want no error codes of these markers any more; give the request up if none is left."""
        for each in markers:
            del self._missing[each]
        if not self._missing and self._asking is not None:
            self.is_given_up = True
            self._asking.cancel()

    def codes(self, response: WriteTxnMarkersResponse) -> dict[QueuedMarker, ErrorCode]:
        """Return the error codes of the markers that are still wanted."""
        codes: dict[QueuedMarker, ErrorCode] = dict.fromkeys(self._missing, ErrorCode.UNKNOWN_SERVER_ERROR)
        for group, answer in zip(self._groups, response.markers, strict=False):
            told = {
                TopicPartition(topic.name, each.partition_index): each.error_code
                for topic in answer.topics
                for each in topic.partitions
            }
            for each in group:
                if each in codes:
                    codes[each] = ErrorCode(told.get(each.where, ErrorCode.UNKNOWN_SERVER_ERROR))
        return codes


def by_job(markers: Iterable[QueuedMarker]) -> list[list[QueuedMarker]]:
    """Return the markers grouped by transaction."""
    groups: defaultdict[MarkerJob, list[QueuedMarker]] = defaultdict(list)
    for each in markers:
        groups[each.job].append(each)
    return list(groups.values())


def _marker_of(group: Sequence[QueuedMarker]) -> WriteTxnMarkersRequestMarker:
    """Return the entry of WriteTxnMarkers for the markers of one transaction."""
    indexes: defaultdict[str, list[int]] = defaultdict(list)
    for each in group:
        indexes[each.where.topic].append(each.where.partition)
    task = group[0].job.task
    return WriteTxnMarkersRequestMarker(
        producer_id=task.producer_id,
        producer_epoch=task.producer_epoch,
        transaction_result=task.is_commit,
        topics=[WriteTxnMarkersRequestTopic(name=name, partition_indexes=each) for name, each in indexes.items()],
        coordinator_epoch=task.coordinator_epoch,
        transaction_version=task.transaction_version,
    )
