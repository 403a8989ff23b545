"""A state machine of counters and a shard that hosts it over a log in memory, for the tests of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from flowstone.coordinator.append_rounds import CROWD_SHARDS, AppendRounds
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.replay_reports import ReplayReports
from flowstone.coordinator.runtime import RELOAD_DELAY_S, Host, HostedShard
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.coordinator.tick_queue import TickQueue
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import encode_record
from tests.support.internal_log import MemoryInternalLog

TURNS = 20
LEADER_EPOCH = 4
PRODUCER = TransactionalProducer(7, 3)
MARKER = EndMarker(True, 1)


class Counters:
    """A state machine with named counters: a record is a name and its new value."""

    class Codec:
        def encode_all(self, records: Sequence[tuple[str, int]]) -> list[bytes]:
            return [
                encode_record(delta, 0, name.encode(), str(value).encode())
                for delta, (name, value) in enumerate(records)
            ]

        def decode(self, key: bytes, value: bytes | None) -> tuple[str, int]:
            if value == b"damaged":
                raise StorageFault("a record cannot be read")
            assert value is not None
            return key.decode(), int(value)

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.values: dict[str, int] = {}
        self.replayed: list[tuple[str, int]] = []
        self.transactions: list[tuple[tuple[str, int], ...] | EndMarker] = []
        self.loaded_ms: int | None = None
        self._parked: list[tuple[int, Any]] = []
        self.is_closed = False

    def replay(self, records: Sequence[tuple[str, int]], producer: TransactionalProducer | None = None) -> None:
        if producer is not None:
            assert producer == PRODUCER
            self.transactions.append(tuple(records))
            return
        self.replayed += records
        self.values.update(records)

    def replay_marker(self, producer: TransactionalProducer, marker: EndMarker) -> None:
        assert producer == PRODUCER
        self.transactions.append(marker)

    def loaded(self, now_ms: int) -> Effects[Any]:
        self.loaded_ms = now_ms
        return Effects()

    def add(self, _now_ms: int, token: Any, name: str, *, can_wait: bool) -> Effects[Any]:
        value = self.values.get(name, 0) + 1
        return Effects([(name, value)], [(token, value)], can_wait)

    def get(self, _now_ms: int, token: Any, name: str) -> Effects[Any]:
        return Effects([], [(token, self.values.get(name, 0))])

    def write_transaction(self, _now_ms: int, token: Any, marker: EndMarker = MARKER) -> Effects[Any]:
        """Both records of a transaction and its end, which a real one never writes at once."""
        return Effects([("t", 1), ("t", 2)], [(token, 2)], producer=PRODUCER, marker=marker)

    def give_tasks(self, _now_ms: int, token: Any, *names: str) -> Effects[Any]:
        return Effects([("c", 1)], [(token, 1)], tasks=list(names))

    def park(self, now_ms: int, token: Any, delay_ms: int) -> Effects[Any]:
        self._parked.append((now_ms + delay_ms, token))
        return Effects()

    def tick(self, now_ms: int) -> Effects[Any]:
        due = [(token, now_ms) for deadline_ms, token in self._parked if deadline_ms <= now_ms]
        self._parked = [each for each in self._parked if each[0] > now_ms]
        return Effects([], due)

    def next_deadline(self) -> int | None:
        return min((deadline_ms for deadline_ms, _token in self._parked), default=None)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class Bench:
    """A shard of counters on a log in memory."""

    def __init__(self, log: MemoryInternalLog, codec: Counters.Codec | None = None) -> None:
        self.log, self.clock = log, SimulatedClock()
        self.machines: list[Counters] = []
        self.rounds = AppendRounds()
        self.performed: list[str] = []
        self.on_task: Callable[[str], None] = self.performed.append
        host = Host(
            clock=self.clock,
            codec=codec or Counters.Codec(),
            new_machine=self._new,
            load_lock=asyncio.Lock(),
            rounds=self.rounds,
            reports=ReplayReports(self.clock.monotonic),
            skipped=SkippedRecords(),
            ticks=TickQueue(self.clock),
            perform=self._perform,
        )
        self.shard = HostedShard("counters-0", log, host, LEADER_EPOCH)

    def _new(self, leader_epoch: int) -> Counters:
        self.machines.append(Counters(leader_epoch))
        return self.machines[-1]

    def _perform(self, shard: HostedShard[Counters], task: str) -> None:
        assert shard is self.shard
        self.on_task(task)

    def give_tasks(self, *names: str) -> asyncio.Future[int]:
        return self.shard.request(lambda machine, now_ms, token: machine.give_tasks(now_ms, token, *names))

    def write_transaction(self, marker: EndMarker = MARKER) -> asyncio.Future[int]:
        return self.shard.request(lambda machine, now_ms, token: machine.write_transaction(now_ms, token, marker))

    def add(self, name: str = "c", *, can_wait: bool = False) -> asyncio.Future[int]:
        return self.shard.request(lambda machine, now_ms, token: machine.add(now_ms, token, name, can_wait=can_wait))

    def add_in_round(self, name: str = "c") -> asyncio.Future[int]:
        """What can wait, and has to, since others have appended just before."""
        for other in range(CROWD_SHARDS):
            self.rounds.join(other, lambda: None)
        self.rounds._begin(asyncio.get_running_loop().time(), follows=True)
        return self.add(name, can_wait=True)

    def get(self, name: str = "c") -> asyncio.Future[int]:
        return self.shard.request(lambda machine, now_ms, token: machine.get(now_ms, token, name))

    def park(self, delay_ms: int) -> asyncio.Future[int]:
        return self.shard.request(lambda machine, now_ms, token: machine.park(now_ms, token, delay_ms))

    async def turn(self) -> None:
        """Lets everything that can go on do so."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def reload(self) -> None:
        self.clock.advance(RELOAD_DELAY_S)
        await self.turn()


def error(future: asyncio.Future[Any]) -> ErrorCode:
    failure = future.exception()
    assert isinstance(failure, ApiError)
    return failure.code


def on_a_bench(test: Callable[[Bench], Any], **log: bool) -> None:
    async def run() -> None:
        bench = Bench(MemoryInternalLog(**log))
        await bench.turn()
        await test(bench)

    asyncio.run(run())
