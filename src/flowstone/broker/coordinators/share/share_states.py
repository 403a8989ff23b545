"""The states of share partitions, for the brokers that lead the partitions and for the group coordinator.

A request goes to the share coordinator's shard on this broker or, if another broker leads the shard's partition, to
that broker. A request that fails because the coordinator moves, loads or does not answer is sent again for a while.
Every method returns a result for each share partition, with an error code; none raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.coordinator_host import HostServices
from flowstone.broker.coordinators.share import share_requests
from flowstone.broker.coordinators.share.share_coordinator import ShareCall, ShareCoordinator
from flowstone.broker.coordinators.share.share_requests import RemoteCall
from flowstone.broker.coordinators.share.state_pruning import StatePruning
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import NO_LEADER
from flowstone.coordinator.share.messages import InitialState, StateRead, StateResult, StateSummary, StateWrite
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.manager import LogManager
from flowstone.promise import Promise
from flowstone.replication.served_partitions import Partitions

# How long another broker's coordinator may take to answer.
REQUEST_TIMEOUT_S = 5.0
# How often a request is sent, and the pauses in between, which double.
ATTEMPTS_MAX = 6
FIRST_PAUSE_S = 0.05
# Requests of one call that are under way at the same time.
CONCURRENT_MAX = 64

_RETRIABLE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )
)

Answer = TypeVar("Answer", StateResult, StateRead, StateSummary)


class ShareStates:
    def __init__(self, services: HostServices, peers: BrokerPeers) -> None:
        """Create the coordinator of this broker too; `peers` are its connections to others."""
        self.coordinator = ShareCoordinator(services)
        self._node_id, self._metadata, self._clock = services.config.node_id, services.metadata, services.clock
        self.peers = peers
        self._running: set[asyncio.Task[None]] = set()
        self._pruning: StatePruning | None = None

    def start_pruning(self, partitions: Partitions, logs: LogManager, interval_ms: int) -> None:
        """Delete obsolete records of the topic from time to time."""
        self._pruning = StatePruning(self.coordinator, partitions, logs, self._clock, interval_ms)

    def close(self) -> None:
        """Cancel all running requests, without resolving their promises, and close the coordinator."""
        for task in tuple(self._running):
            task.cancel()
        if self._pruning is not None:
            self._pruning.close()
        self.peers.close()
        self.coordinator.close()

    async def wait_loaded(self, timeout_s: float) -> None:
        """Return when each shard hosted now has been loaded or has failed to load, or after `timeout_s`."""
        await self.coordinator.wait_loaded(timeout_s)

    async def initialize(self, states: Sequence[InitialState]) -> Mapping[ShareKey, StateResult]:
        """Initialize the states of share partitions; create the topic of states if it does not exist.

        FENCED_STATE_EPOCH: the stored state has a newer state epoch.
        """
        if self.coordinator.partition_of("") is None:
            try:
                await self.coordinator.create_topic()
            except ApiError as error:
                refused = StateResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
                return {state.key: refused for state in states}
        return await self._all({state.key: state for state in states}, self._initialize)

    async def read(self, leader_epochs: Mapping[ShareKey, int]) -> Mapping[ShareKey, StateRead]:
        """Return the states, and fence leaders with older epochs.

        INVALID_REQUEST: the state has not been initialized. FENCED_LEADER_EPOCH: a later leader has read it.
        """
        return await self._all(leader_epochs, self._read)

    def write(self, write: StateWrite) -> Promise[StateResult]:
        """Change one state; the promise of the result is resolved once the change is durable or refused."""
        key = write.key
        answer: Promise[StateResult] = Promise()

        def call(shard: Any, now_ms: int, token: Any) -> Any:
            return shard.write(now_ms, token, write)

        def answered(token: Promise[StateResult]) -> None:
            if answer.is_done:
                return
            if token.error is None:
                answer.set_result(token.result())
            else:  # the shard moves or loads: ask again, wherever it is then
                self.spawn(self._finish(answer, key, call, share_requests.write(write)))

        self.coordinator.request(key, call).add_done_callback(answered)
        return answer

    async def delete(self, keys: Iterable[ShareKey]) -> Mapping[ShareKey, StateResult]:
        """Delete the states of share partitions; a state that does not exist is no error."""
        return await self._all(dict.fromkeys(keys), self._delete)

    async def summarize(self, keys: Iterable[ShareKey]) -> Mapping[ShareKey, StateSummary]:
        """Return where share partitions start; a share partition without a state has the start offset -1."""
        return await self._all(dict.fromkeys(keys), self._summarize)

    # One share partition

    async def _initialize(self, key: ShareKey, state: InitialState) -> StateResult:
        return await self._ask(
            key, lambda shard, now_ms, token: shard.initialize(now_ms, token, state), share_requests.initialize(state)
        )

    async def _read(self, key: ShareKey, leader_epoch: int) -> StateRead:
        return await self._ask(
            key,
            lambda shard, now_ms, token: shard.read(now_ms, token, key, leader_epoch),
            share_requests.read(key, leader_epoch),
        )

    async def _delete(self, key: ShareKey, _: None) -> StateResult:
        if self.coordinator.partition_of("") is None:
            return StateResult()
        return await self._ask(
            key, lambda shard, now_ms, token: shard.delete(now_ms, token, key), share_requests.delete(key)
        )

    async def _summarize(self, key: ShareKey, _: None) -> StateSummary:
        if self.coordinator.partition_of("") is None:
            return StateSummary()
        return await self._ask(
            key, lambda shard, now_ms, token: shard.summarize(now_ms, token, key), share_requests.summarize(key)
        )

    # Asking

    async def _all(
        self, asked: Mapping[ShareKey, Any], ask: Callable[[ShareKey, Any], Awaitable[Answer]]
    ) -> Mapping[ShareKey, Answer]:
        """Return the result of each share partition, asking for a limited number at a time."""
        results: dict[ShareKey, Answer] = {}
        items = list(asked.items())
        for begin in range(0, len(items), CONCURRENT_MAX):
            some = items[begin : begin + CONCURRENT_MAX]
            answers = await asyncio.gather(*(ask(key, value) for key, value in some))
            results.update((key, answer) for (key, _), answer in zip(some, answers, strict=True))
        return results

    async def _ask(self, key: ShareKey, call: ShareCall, remote: RemoteCall[Answer]) -> Answer:
        """Return the coordinator's answer; after too many failed attempts, one with the last error code."""
        pause_s, answer = FIRST_PAUSE_S, remote.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self._clock.sleep(pause_s)
                pause_s *= 2
            try:
                answer = await self._ask_once(key, call, remote)
            except ApiError as error:
                answer = remote.failed(error.code, error.message)
            except ClientError as error:
                answer = remote.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            if answer.error_code not in _RETRIABLE:
                break
        return answer

    async def _ask_once(self, key: ShareKey, call: ShareCall, remote: RemoteCall[Answer]) -> Answer:
        if self.coordinator.shard_of(key) is not None:
            answer: Answer = await self.coordinator.request(key, call)
            return answer
        place = self.coordinator.partition_of(str(key))
        placed = None if place is None else self._metadata.image.partition(place)
        if placed is None or placed.leader in (NO_LEADER, self._node_id):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response = await self.peers.ask(placed.leader, remote.request, remote.response, REQUEST_TIMEOUT_S)
        return remote.answer(response)

    async def _finish(
        self, answer: Promise[StateResult], key: ShareKey, call: ShareCall, remote: RemoteCall[StateResult]
    ) -> None:
        result = await self._ask(key, call, remote)
        if not answer.is_done:
            answer.set_result(result)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that asks for states, until it ends or `close` stops it."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
