"""The sender of end markers: has the leaders of a decided transaction's partitions write them.

Each marker waits in the queue of the broker that leads its partition. A queue has one worker, which writes markers
itself if this broker leads, and otherwise sends WriteTxnMarkers, one request at a time. A marker that fails for a
temporary reason is routed again after a pause, to the partition's leader at that time. A partition that is no longer in
the metadata needs no marker.

At most one marker of a producer is in flight to a partition, since a producer has one transaction at a time. A second
one, which a shard sends again after it was reloaded, waits for the response to the first. The queues are bounded by the
memory of transactional ids (`transaction.memory.max.bytes`): a task replaces the previous one of its transactional id,
and the markers of a shard that is not hosted any more are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.local_markers import LocalMarkers, Marker
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import NO_LEADER
from flowstone.cluster.metadata import Metadata
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.transactions.messages import SendMarkers
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.coordinator.transactions.state import TransactionEffects
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock, Timer
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarker,
    WriteTxnMarkersRequestTopic,
    WriteTxnMarkersResponse,
)

logger = logging.getLogger(__name__)

MARKERS_PER_REQUEST_MAX = 1_000
# Markers of one transaction that are written here at once before its shard is notified.
MARKERS_TOLD_TOGETHER_MAX = 100
REQUEST_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.1
# Failed markers that are routed in one go, so that they do not hold up the loop.
RETRIED_AT_ONCE_MAX = 2_000

# The leader knows of a newer producer epoch or coordinator: this coordinator's markers are not wanted.
_REFUSALS = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


@dataclass(slots=True, eq=False)
class _Job:
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


class _Queued(NamedTuple):
    job: _Job
    where: TopicPartition

    @property
    def key(self) -> tuple[TopicPartition, int]:
        return self.where, self.job.task.producer_id


class MarkerSender:
    def __init__(
        self,
        node_id: int,
        metadata: Metadata,
        clock: Clock,
        local: LocalMarkers,
        peers: BrokerPeers,
        is_hosted: Callable[[HostedShard[TransactionShard], str], bool],
        on_ended: Callable[[str], None],
    ) -> None:
        """Create a sender with empty queues; `is_hosted` returns whether a shard is still hosted by this broker.

        `on_ended` is called with the transactional id once all markers are written and its shard has been told.
        """
        self._node_id, self._metadata, self._clock = node_id, metadata, clock
        self._local, self._peers, self._is_hosted = local, peers, is_hosted
        self._on_ended = on_ended
        self._jobs: dict[str, _Job] = {}  # the newest of each transactional id, until all its markers are written
        self._queues: dict[int, deque[_Queued]] = {}
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._under_way: set[tuple[TopicPartition, int]] = set()
        self._failed: list[_Queued] = []
        self._retry: Timer | None = None
        self._is_closed = False

    def send(self, shard: HostedShard[TransactionShard], task: SendMarkers) -> None:
        """Start writing the markers of a task; the shard is called when some are written, or when they are refused."""
        if self._is_closed:
            return
        job = self._jobs[task.transactional_id] = _Job(shard, task, len(task.partitions))
        self._route([_Queued(job, where) for where in task.partitions])

    def close(self) -> None:
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for worker in self._workers.values():
            worker.cancel()
        self._jobs.clear()
        self._queues.clear()
        self._failed.clear()

    # Routing

    def _route(self, markers: Iterable[_Queued]) -> None:
        """Append each marker to the queue of the broker that leads its partition now."""
        image = self._metadata.image
        gone: list[_Queued] = []
        for each in markers:
            if not self._is_wanted(each.job):
                continue
            placed = image.partition(each.where)
            if placed is None:
                gone.append(each)
            elif placed.leader == NO_LEADER:
                self._try_again(each)
            else:
                self._queues.setdefault(placed.leader, deque()).append(each)
        self._tell_written(gone)
        for node_id, queue in self._queues.items():
            worker = self._workers.get(node_id)
            if queue and (worker is None or worker.done()):
                self._workers[node_id] = asyncio.ensure_future(self._work(node_id, queue))

    def _is_wanted(self, job: _Job) -> bool:
        """Return whether the task is the newest of its transactional id and its shard is still hosted."""
        transactional_id = job.task.transactional_id
        if self._jobs.get(transactional_id) is not job:
            return False
        if self._is_hosted(job.shard, transactional_id):
            return True
        del self._jobs[transactional_id]
        return False

    def _try_again(self, marker: _Queued) -> None:
        self._failed.append(marker)
        if self._retry is None and not self._is_closed:
            self._retry = self._clock.call_later(RETRY_PAUSE_S, self._retry_failed)

    def _retry_failed(self) -> None:
        self._retry = None
        failed, later = self._failed[:RETRIED_AT_ONCE_MAX], self._failed[RETRIED_AT_ONCE_MAX:]
        self._failed = []
        self._route(failed)
        for each in later:
            self._try_again(each)

    # Writing

    async def _work(self, node_id: int, queue: deque[_Queued]) -> None:
        while queue:
            batch = self._next_batch(node_id, queue)
            try:
                if node_id == self._node_id:
                    await self._write_here(batch)
                elif batch:
                    await self._send_to(node_id, batch)
            except ClientError as error:
                logger.debug("broker %d did not take markers: %s", node_id, error)
                self._answered(dict.fromkeys(batch, ErrorCode.NETWORK_EXCEPTION))
            except Exception:  # a mistake of ours must not stop the markers of other transactions
                logger.exception("markers for broker %d could not be sent", node_id)
                self._answered(dict.fromkeys(batch, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _next_batch(self, node_id: int, queue: deque[_Queued]) -> list[_Queued]:
        """Take markers out of the queue and note that they are in flight."""
        batch: list[_Queued] = []
        while queue and len(batch) < MARKERS_PER_REQUEST_MAX:
            each = queue.popleft()
            if not self._is_wanted(each.job):
                continue
            placed = self._metadata.image.partition(each.where)
            if each.key in self._under_way or placed is None or placed.leader != node_id:
                self._try_again(each)
                continue
            self._under_way.add(each.key)
            batch.append(each)
        return batch

    async def _write_here(self, batch: Sequence[_Queued]) -> None:
        """Append markers to partitions that this broker leads; their shards are notified once they are committed."""
        slices = TimeSlices(self._clock.monotonic)
        answered: dict[_Queued, ErrorCode] = {}  # of one transaction, whose shard is notified once
        for number, each in enumerate(batch, 1):
            written = self._write(each)
            if written.is_done:
                answered[each] = _code_of(written)
            else:
                written.add_done_callback(partial(self._written_here, each))
            is_last = number == len(batch) or batch[number].job is not each.job
            if answered and (is_last or len(answered) >= MARKERS_TOLD_TOGETHER_MAX):
                self._answered(answered)
                answered = {}
            await slices.yield_if_due()

    def _write(self, marker: _Queued) -> Promise[None]:
        try:
            return self._local.write(marker.where, marker.job.marker)
        except Exception:  # a mistake of ours must not stop the markers of other transactions
            logger.exception("the marker in %s could not be written", marker.where)
            failed: Promise[None] = Promise()
            failed.set_exception(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return failed

    def _written_here(self, marker: _Queued, written: Promise[None]) -> None:
        self._answered({marker: _code_of(written)})

    async def _send_to(self, node_id: int, batch: Sequence[_Queued]) -> None:
        groups = _by_job(batch)
        request = WriteTxnMarkersRequest(markers=[_marker_of(group) for group in groups])
        response = await self._peers.ask(node_id, request, WriteTxnMarkersResponse, REQUEST_TIMEOUT_S)
        codes: dict[_Queued, ErrorCode] = dict.fromkeys(batch, ErrorCode.UNKNOWN_SERVER_ERROR)
        for group, answer in zip(groups, response.markers, strict=False):
            told = {
                TopicPartition(topic.name, each.partition_index): each.error_code
                for topic in answer.topics
                for each in topic.partitions
            }
            for each in group:
                codes[each] = ErrorCode(told.get(each.where, ErrorCode.UNKNOWN_SERVER_ERROR))
        self._answered(codes)

    # What came of it

    def _answered(self, codes: Mapping[_Queued, ErrorCode]) -> None:
        written: list[_Queued] = []
        for each, code in codes.items():
            self._under_way.discard(each.key)
            if not self._is_wanted(each.job):
                continue
            if code is ErrorCode.NONE:
                written.append(each)
            elif code in _REFUSALS:
                self._refused(each, code)
            else:
                self._try_again(each)
        self._tell_written(written)

    def _tell_written(self, markers: Sequence[_Queued]) -> None:
        for group in _by_job(markers):
            job = group[0].job
            job.unwritten -= len(group)
            if not job.unwritten:
                del self._jobs[job.task.transactional_id]
            job.shard.execute(partial(_note_written, job.task, [each.where for each in group]))
            if not job.unwritten:
                self._on_ended(job.task.transactional_id)

    def _refused(self, marker: _Queued, code: ErrorCode) -> None:
        task = marker.job.task
        logger.warning(
            "%s refused the marker of transactional id %r (producer %d, epoch %d): %s",
            marker.where,
            task.transactional_id,
            task.producer_id,
            task.producer_epoch,
            code.name,
        )
        del self._jobs[task.transactional_id]
        marker.job.shard.execute(lambda machine, now_ms: machine.markers_refused(now_ms, task))


def _code_of(written: Promise[None]) -> ErrorCode:
    error = written.error
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, ApiError) else ErrorCode.UNKNOWN_SERVER_ERROR


def _note_written(
    task: SendMarkers, partitions: Sequence[TopicPartition], machine: TransactionShard, now_ms: int
) -> TransactionEffects:
    return machine.markers_written(now_ms, task, partitions)


def _by_job(markers: Iterable[_Queued]) -> list[list[_Queued]]:
    """Return the markers grouped by transaction."""
    groups: defaultdict[_Job, list[_Queued]] = defaultdict(list)
    for each in markers:
        groups[each.job].append(each)
    return list(groups.values())


def _marker_of(group: Sequence[_Queued]) -> WriteTxnMarkersRequestMarker:
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
