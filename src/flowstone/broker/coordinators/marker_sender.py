"""The sender of end markers: has the leaders of a decided transaction's partitions write them.

Each marker waits in the queue of the broker that leads its partition. A queue has one worker, which writes markers
itself if this broker leads, and otherwise sends WriteTxnMarkers, one request at a time. A marker that fails for a
temporary reason is routed again after a pause, to the partition's leader at that time. A partition that is no longer in
the metadata needs no marker.

A marker follows its partition: when the metadata names another leader, the marker is routed to that one at once,
whether it waits in a queue or for a response. A request without a marker that still waits is given up, because the
former leader may be paused, cut off or about to stop, and its response late. The former leader may have written the
marker all the same; leaders accept a marker twice.

At most one marker of a producer is in flight to a partition, since a producer has one transaction at a time. A second
one, which a shard sends again after it was reloaded, waits for the response to the first. The queues are bounded by the
memory of transactional ids (`transaction.memory.max.bytes`): a task replaces the previous one of its transactional id,
and the markers of a shard that is not hosted any more are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.local_markers import LocalMarkers
from flowstone.broker.coordinators.marker_requests import MarkerJob, MarkersInFlight, QueuedMarker, by_job
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import NO_LEADER, ClusterImage
from flowstone.cluster.image.records import MetadataRecord, PartitionChanged
from flowstone.cluster.metadata import Metadata
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.transactions.messages import SendMarkers
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.coordinator.transactions.state import TransactionEffects
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock, Timer
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import WriteTxnMarkersResponse

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
        self._jobs: dict[str, MarkerJob] = {}  # the newest of each transactional id, until all its markers are written
        self._queues: dict[int, deque[QueuedMarker]] = {}
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._in_flight: dict[int, MarkersInFlight] = {}
        self._under_way: set[tuple[TopicPartition, int]] = set()
        self._unrouted: list[QueuedMarker] = []
        self._failed: list[QueuedMarker] = []
        self._retry: Timer | None = None
        self._is_closed = False
        metadata.on_change(self._follow)

    def send(self, shard: HostedShard[TransactionShard], task: SendMarkers) -> None:
        """Take over the markers of a task; the shard is called when some are written, or when they are refused.

        They are routed in the next iteration of the loop: the response to EndTxn, which is sent in this one, does not
        wait for it.
        """
        if self._is_closed:
            return
        job = self._jobs[task.transactional_id] = MarkerJob(shard, task, len(task.partitions))
        if not self._unrouted:
            asyncio.get_running_loop().call_soon(self._route_new)
        self._unrouted += [QueuedMarker(job, where) for where in task.partitions]

    def close(self) -> None:
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for worker in self._workers.values():
            worker.cancel()
        self._jobs.clear()
        self._queues.clear()
        self._unrouted.clear()
        self._failed.clear()

    # Routing

    def _route_new(self) -> None:
        markers, self._unrouted = self._unrouted, []
        self._route(markers)

    def _route(self, markers: Iterable[QueuedMarker]) -> None:
        """Append each marker to the queue of the broker that leads its partition now."""
        image = self._metadata.image
        gone: list[QueuedMarker] = []
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

    def _is_wanted(self, job: MarkerJob) -> bool:
        """Return whether the task is the newest of its transactional id and its shard is still hosted."""
        transactional_id = job.task.transactional_id
        if self._jobs.get(transactional_id) is not job:
            return False
        if self._is_hosted(job.shard, transactional_id):
            return True
        del self._jobs[transactional_id]
        return False

    def _try_again(self, marker: QueuedMarker) -> None:
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

    def _follow(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Route the markers of partitions that have another leader now to that one."""
        changed = [each for each in records if isinstance(each, PartitionChanged)]
        for node_id in {leader for each in changed if (leader := _former_leader(each, before, after)) is not None}:
            self._withdraw(node_id, after)

    def _withdraw(self, node_id: int, image: ClusterImage) -> None:
        """Route again what waits in a broker's queue, or for its response, and is for partitions led elsewhere now."""

        def has_moved(marker: QueuedMarker) -> bool:
            placed = image.partition(marker.where)
            return placed is None or placed.leader != node_id

        moved: list[QueuedMarker] = []
        queue, in_flight = self._queues.get(node_id), self._in_flight.get(node_id)
        if queue:
            staying: list[QueuedMarker] = []
            for each in queue:
                (moved if has_moved(each) else staying).append(each)
            queue.clear()
            queue.extend(staying)
        if in_flight is not None:
            unanswered = [*filter(has_moved, in_flight.missing)]
            self._under_way.difference_update(each.key for each in unanswered)
            in_flight.take_out(unanswered)
            moved += unanswered
        self._route(moved)

    # Writing

    async def _work(self, node_id: int, queue: deque[QueuedMarker]) -> None:
        while queue:
            batch = self._next_batch(node_id, queue)
            try:
                if node_id == self._node_id:
                    await self._write_here(batch)
                elif batch:
                    await self._send_to(node_id, batch)
            except Exception:  # a mistake of ours must not stop the markers of other transactions
                logger.exception("markers for broker %d could not be sent", node_id)
                self._answered(dict.fromkeys(batch, ErrorCode.UNKNOWN_SERVER_ERROR))

    def _next_batch(self, node_id: int, queue: deque[QueuedMarker]) -> list[QueuedMarker]:
        """Take markers out of the queue and note that they are in flight."""
        batch: list[QueuedMarker] = []
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

    async def _write_here(self, batch: Sequence[QueuedMarker]) -> None:
        """Append markers to partitions that this broker leads; their shards are notified once they are committed."""
        slices = TimeSlices(self._clock.monotonic)
        answered: dict[QueuedMarker, ErrorCode] = {}  # of one transaction, whose shard is notified once
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

    def _write(self, marker: QueuedMarker) -> Promise[None]:
        try:
            return self._local.write(marker.where, marker.job.marker)
        except Exception:  # a mistake of ours must not stop the markers of other transactions
            logger.exception("the marker in %s could not be written", marker.where)
            failed: Promise[None] = Promise()
            failed.set_exception(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
            return failed

    def _written_here(self, marker: QueuedMarker, written: Promise[None]) -> None:
        self._answered({marker: _code_of(written)})

    async def _send_to(self, node_id: int, batch: Sequence[QueuedMarker]) -> None:
        """Request markers from another broker; return when it has responded, or need not respond any more."""
        in_flight = self._in_flight[node_id] = MarkersInFlight(batch)
        asked = self._peers.ask(node_id, in_flight.request(), WriteTxnMarkersResponse, REQUEST_TIMEOUT_S)
        asking = asyncio.ensure_future(asked)
        in_flight.sent(asking)
        try:
            response = await asking
        except asyncio.CancelledError:
            if not in_flight.is_given_up:
                asking.cancel()  # this broker stops
                raise
        except ClientError as error:
            logger.debug("broker %d did not take markers: %s", node_id, error)
            self._answered(dict.fromkeys(in_flight.missing, ErrorCode.NETWORK_EXCEPTION))
        else:
            self._answered(in_flight.codes(response))
        finally:
            del self._in_flight[node_id]

    # What came of it

    def _answered(self, codes: Mapping[QueuedMarker, ErrorCode]) -> None:
        written: list[QueuedMarker] = []
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

    def _tell_written(self, markers: Sequence[QueuedMarker]) -> None:
        for group in by_job(markers):
            job = group[0].job
            job.unwritten -= len(group)
            if not job.unwritten:
                del self._jobs[job.task.transactional_id]
            job.shard.execute(partial(_note_written, job.task, [each.where for each in group]))
            if not job.unwritten:
                self._on_ended(job.task.transactional_id)

    def _refused(self, marker: QueuedMarker, code: ErrorCode) -> None:
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


def _former_leader(change: PartitionChanged, before: ClusterImage, after: ClusterImage) -> int | None:
    """Return the broker that does not lead the partition any more, or None if the leader has not changed."""
    was, now = (image.topics_by_id.get(change.topic_id) for image in (before, after))
    if was is None or now is None or change.partition >= len(was.partitions):
        return None  # created or deleted in the same append
    leader = was.partitions[change.partition].leader
    return leader if now.partitions[change.partition].leader != leader else None
