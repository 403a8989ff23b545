"""Runs the followers: one task per leader that fetches, applies the response, waits for the disk, and fetches again.

`replica_fetch_session` knows what is fetched and what responses mean; this module owns connections, waits and retries.
A leader that cannot be reached is tried again after a pause, for as long as the cluster says that it leads. Clock and
network are ports. No decision is made here: which partition is followed where comes from the metadata, through `follow`
and `unfollow`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from functools import partial

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError
from flowstone.client.peer import Peer
from flowstone.errors import ApiError, StorageFault
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.network import Network
from flowstone.replication.partition import Partition
from flowstone.replication.replica_fetch_session import BACKOFF_FIRST_S, DueCut, Limits, ReplicaFetchSession
from flowstone.replication.throttle import Throttle
from flowstone.wire.messages import FetchResponse

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
# Added to the time for which a leader may hold a fetch.
ANSWER_TIMEOUT_S = 10.0
# Kafka's replica.fetch.backoff.ms is 1000; a leader that restarts is back sooner.
REPLICA_FETCH_BACKOFF_MS = 200
# How long a response is awaited when there is something new to fetch. A leader without records would hold the fetch for
# replica.fetch.wait.max.ms, and the clients of a partition that has just got its leader with it.
INTERRUPT_AFTER_S = 0.02


class Counts:
    """Counters of all leaders together since the start."""

    def __init__(self) -> None:
        self.fetched_bytes = self.truncations = self.restarts = self.disconnections = 0


class ReplicaFetcher:
    def __init__(
        self, address: Address, fetches: ReplicaFetchSession, clock: Clock, network: Network, node: Node, counts: Counts
    ) -> None:
        self.address, self.fetches = address, fetches
        self._clock, self._network, self._node, self._counts = clock, network, node, counts
        self._changed = asyncio.Event()
        self._peer: Peer | None = None
        self._interrupting: Timer | None = None
        self._is_asking = self._is_interrupted = False
        self._is_told = False  # whether it was logged that the leader cannot be reached; once, not with each attempt
        self._task = asyncio.ensure_future(self._run())

    def changed(self, *, is_urgent: bool) -> None:
        """Record that there may be something new to fetch."""
        self._changed.set()
        if is_urgent and self._is_asking and self._interrupting is None:
            self._interrupting = self._clock.call_later(INTERRUPT_AFTER_S, self._interrupt)

    def _interrupt(self) -> None:
        """Close the connection to end a waiting fetch: a request cannot be withdrawn."""
        if self._peer is not None and self._is_asking:
            self._is_interrupted = True
            self._peer.close()

    def close(self) -> None:
        self._task.cancel()
        self._stop_interrupting()
        if self._peer is not None:
            self._peer.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch()
            except ClientError as error:
                if self._is_interrupted:
                    self._peer, self._is_interrupted = None, False
                    self.fetches.disconnected()
                    continue
                self._counts.disconnections += 1
                if not self._is_told:
                    self._is_told = True
                    logger.warning("broker %d cannot fetch from its leader: %s", self._node.node_id, error)
            except ApiError as error:  # the session was refused: it starts over
                logger.info("broker %d: %s at %s", self._node.node_id, error, self.address)
                await self._clock.sleep(BACKOFF_FIRST_S)
                continue
            except Exception:
                logger.exception("broker %d: fetching from %s failed", self._node.node_id, self.address)
            if self._peer is not None:
                self._peer.close()
            self._peer = None
            self.fetches.disconnected()
            await self._clock.sleep(REPLICA_FETCH_BACKOFF_MS / 1000)

    async def _fetch(self) -> None:
        """Fetch round after round, until something fails."""
        node, clock, fetches = self._node, self._clock, self.fetches
        while True:
            await self._wait_for_work()
            if self._peer is None:
                client_id = f"broker-{node.node_id}-fetcher"
                self._peer = await Peer.connect(self._network, clock, self.address, client_id, CONNECT_TIMEOUT_S)
            await self._flushed()
            request = fetches.request(node.broker_epoch(), clock.monotonic())
            timeout_s = request.max_wait_ms / 1000 + ANSWER_TIMEOUT_S
            self._is_asking = True
            try:
                response = await self._peer.ask(request, FetchResponse, timeout_s)
            finally:
                self._is_asking = False
                self._stop_interrupting()
            self._is_told = False
            due_cuts = fetches.answered(response, clock.monotonic())
            self._count(response)
            del response  # frees its memory for the next response
            if due_cuts:
                await asyncio.gather(*map(self._cut, due_cuts))

    def _stop_interrupting(self) -> None:
        if self._interrupting is not None:
            self._interrupting.cancel()
            self._interrupting = None

    async def _wait_for_work(self) -> None:
        while True:
            now_s = self._clock.monotonic()
            until_s = self.fetches.waits_until_s(now_s)
            if until_s <= now_s:
                return
            self._changed.clear()
            timer = None if until_s == math.inf else self._clock.call_later(until_s - now_s, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def _flushed(self) -> None:
        """Return once the records of all partitions in the next request are flushed, or never will be."""
        while unflushed := self.fetches.unflushed():
            await _flushed(unflushed)

    async def _cut(self, due: DueCut) -> None:
        partition = due.partition
        try:
            if due.diverging is not None:
                self._counts.truncations += 1
                await partition.follower_role(partition.leader_epoch).truncate(due.diverging)
            elif due.restart_offset is not None:
                self._counts.restarts += 1
                await partition.follower_role(partition.leader_epoch).reset(due.restart_offset)
        except (ApiError, StorageFault) as error:
            logger.warning("partition %s could not be truncated: %s", partition.topic_partition, error)
            self.fetches.failed(partition, self._clock.monotonic())

    def _count(self, response: FetchResponse) -> None:
        for topic in response.responses:
            for result in topic.partitions:
                if result.records:
                    self._counts.fetched_bytes += len(result.records)


async def _flushed(partitions: Iterable[Partition]) -> None:
    """Return once everything that these partitions have is flushed, or never will be."""
    done = asyncio.get_running_loop().create_future()
    left = 1

    def flushed(_: object = None) -> None:
        nonlocal left
        left -= 1
        if not left and not done.done():
            done.set_result(None)

    for partition in partitions:
        left += 1
        partition.local.when_flushed(partition.log.log_end_offset, flushed)
    flushed()
    await done


class Node:
    """This broker's identity as leaders know it."""

    def __init__(self, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self.node_id, self.broker_epoch = node_id, broker_epoch


class ReplicaFetchers:
    """All fetchers of a broker: one per leader, with the partitions followed there."""

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        limits: Limits,
        throttled_bytes_per_s: int,
        clock: Clock,
        network: Network,
    ) -> None:
        """Create the fetchers. `broker_epoch` is called for each fetch: a new registration changes the epoch."""
        self._throttle = Throttle(throttled_bytes_per_s)
        self.counts = Counts()
        self._new_fetches = partial(ReplicaFetchSession, node_id, limits, self._throttle)
        self._new_fetcher = partial(
            ReplicaFetcher, clock=clock, network=network, node=Node(node_id, broker_epoch), counts=self.counts
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Partition, int] = {}

    def follow(self, partition: Partition, leader_id: int, endpoint: Address) -> None:
        """Follow the partition. Called again after every decision of the cluster that concerns the partition."""
        if self._leaders.get(partition) != leader_id:
            self.unfollow(partition)
        fetcher = self._fetchers.get(leader_id)
        if fetcher is not None and fetcher.address != endpoint:
            fetcher.close()
            fetcher.fetches.disconnected()
            fetcher = self._fetchers[leader_id] = self._new_fetcher(endpoint, fetcher.fetches)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = self._new_fetcher(endpoint, self._new_fetches())
        self._leaders[partition] = leader_id
        fetcher.changed(is_urgent=fetcher.fetches.add(partition))

    def unfollow(self, partition: Partition) -> None:
        leader_id = self._leaders.pop(partition, None)
        if leader_id is None:
            return
        fetcher = self._fetchers[leader_id]
        fetcher.fetches.remove(partition)
        if not len(fetcher.fetches):
            self._fetchers.pop(leader_id).close()

    def throttle_to(self, bytes_per_s: int) -> None:
        self._throttle.bytes_per_s = bytes_per_s

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._leaders.clear()
