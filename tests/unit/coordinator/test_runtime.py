"""What a coordinator's runtime promises its state machine, its log and its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flowstone.coordinator.append_rounds import CROWD_SHARDS, AppendRounds
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.replay_reports import ReplayReports
from flowstone.coordinator.runtime import FAULTY_LOADS_MAX, RELOAD_DELAY_S, Host, HostedShard
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.promise import Promise
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import encode_record, parse_header
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


def test_a_state_machine_is_closed_once_it_is_thrown_away_and_when_its_shard_closes() -> None:
    async def test(bench: Bench) -> None:
        bench.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
        bench.add()
        assert [machine.is_closed for machine in bench.machines] == [True]
        bench.log.refuses_with = None
        await bench.reload()
        assert [machine.is_closed for machine in bench.machines] == [True, False]
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert [machine.is_closed for machine in bench.machines] == [True, True]

    on_a_bench(test)


def test_a_state_machine_that_could_not_be_loaded_is_closed() -> None:
    async def test(bench: Bench) -> None:
        bench.add()
        bench.log.batches.clear()  # the log says that it has more than can be read
        bench.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
        bench.add()
        bench.log.refuses_with = None
        await bench.reload()
        assert [machine.is_closed for machine in bench.machines] == [True, True]
        bench.shard.close(ErrorCode.NOT_COORDINATOR)

    on_a_bench(test)


def test_a_reply_waits_until_its_records_are_committed() -> None:
    async def test(bench: Bench) -> None:
        reply = bench.add()
        await bench.turn()
        assert not reply.done()
        bench.log.commit()
        assert await reply == 1

    on_a_bench(test, commits_at_once=False)


def test_what_can_wait_does_not_while_nobody_else_appends() -> None:
    async def test(bench: Bench) -> None:
        assert [bench.add(can_wait=True).result() for _ in range(2 * CROWD_SHARDS)][-1] == 2 * CROWD_SHARDS

    on_a_bench(test)


def test_what_can_wait_is_appended_together_in_the_next_round() -> None:
    async def test(bench: Bench) -> None:
        replies = [bench.add_in_round(), bench.add(can_wait=True), bench.add(can_wait=True)]
        assert not bench.log.batches
        assert [await reply for reply in replies] == [1, 2, 3]
        assert len(bench.log.batches) == 1

    on_a_bench(test)


def test_the_reply_to_what_was_appended_in_a_round_waits_for_its_commit() -> None:
    async def test(bench: Bench) -> None:
        reply = bench.add_in_round()
        while not bench.log.batches:
            await asyncio.sleep(0)
        assert not reply.done()
        bench.log.commit()
        assert reply.result() == 1

    on_a_bench(test, commits_at_once=False)


def test_a_read_waits_for_the_round_that_appends_what_it_has_seen() -> None:
    async def test(bench: Bench) -> None:
        added = bench.add_in_round()
        reply = bench.get()
        assert not reply.done()
        assert await reply == 1
        assert added.done()

    on_a_bench(test)


def test_what_cannot_wait_takes_what_came_before_with_it() -> None:
    async def test(bench: Bench) -> None:
        replies = [bench.add_in_round(), bench.add()]
        assert [reply.result() for reply in replies] == [1, 2]
        again = Bench(bench.log)
        await again.turn()
        assert again.machines[0].replayed == [("c", 1), ("c", 2)]

    on_a_bench(test)


def test_a_round_that_the_log_refuses_throws_the_state_away() -> None:
    async def test(bench: Bench) -> None:
        waiting, read = bench.add_in_round(), bench.get()
        bench.log.refuses_with = ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(ApiError):
            await waiting
        assert (error(waiting), error(read)) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
        bench.log.refuses_with = None
        await bench.reload()
        assert await bench.get() == 0

    on_a_bench(test)


def test_closing_appends_what_waits_for_its_round() -> None:
    async def test(bench: Bench) -> None:
        waiting = bench.add_in_round()
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert waiting.result() == 1

    on_a_bench(test)


def test_closing_refuses_what_waits_for_its_round_where_the_log_is_not_ours_any_more() -> None:
    async def test(bench: Bench) -> None:
        waiting = bench.add_in_round()
        bench.log.refuses_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert error(waiting) is ErrorCode.NOT_COORDINATOR
        await bench.reload()
        assert len(bench.machines) == 1, "it is not loaded again"

    on_a_bench(test)


def test_a_read_waits_until_what_it_has_seen_is_committed() -> None:
    async def test(bench: Bench) -> None:
        bench.add()
        reply = bench.get()
        assert not reply.done()
        bench.log.commit()
        assert await reply == 1

    on_a_bench(test, commits_at_once=False)


def test_a_read_of_what_is_committed_is_answered_at_once() -> None:
    async def test(bench: Bench) -> None:
        await bench.add()
        assert bench.get().result() == 1

    on_a_bench(test)


def test_records_are_replayed_before_the_next_call() -> None:
    async def test(bench: Bench) -> None:
        replies = [bench.add() for _ in range(3)]
        bench.log.commit()
        assert await asyncio.gather(*replies) == [1, 2, 3]

    on_a_bench(test, commits_at_once=False)


def test_a_shard_is_what_its_log_says() -> None:
    async def test(bench: Bench) -> None:
        for name in ("a", "b", "a"):
            await bench.add(name)
        again = Bench(bench.log)
        assert error(again.get("a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await again.turn()
        assert (await again.get("a"), await again.get("b")) == (2, 1)
        assert again.machines[0].loaded_ms == again.clock.time_ms()

    on_a_bench(test)


def test_loading_waits_for_what_is_not_committed() -> None:
    async def test(bench: Bench) -> None:
        bench.add()
        again = Bench(bench.log)
        await again.turn()
        assert error(again.get()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.log.commit()
        await again.turn()
        assert await again.get() == 1

    on_a_bench(test, commits_at_once=False)


def test_a_refused_append_leaves_no_trace_in_the_state() -> None:
    async def test(bench: Bench) -> None:
        await bench.add()
        waiting = bench.park(1000)
        bench.log.refuses_with = ErrorCode.KAFKA_STORAGE_ERROR
        refused = bench.add()
        assert (error(refused), error(waiting)) == (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR)
        assert error(bench.get()) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        bench.log.refuses_with = None
        await bench.reload()
        assert await bench.get() == 1

    on_a_bench(test)


def test_a_failed_commit_is_answered_to_everybody_who_saw_it() -> None:
    async def test(bench: Bench) -> None:
        replies = [bench.add(), bench.get(), bench.park(1000)]
        bench.log.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        assert [error(reply) for reply in replies] == [ErrorCode.NOT_COORDINATOR] * 3
        await bench.reload()
        assert await bench.get() == 0

    on_a_bench(test, commits_at_once=False)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_the_logs_errors_reach_clients_as_a_coordinators(code: ErrorCode, told: ErrorCode) -> None:
    async def test(bench: Bench) -> None:
        bench.log.refuses_with = code
        assert error(bench.add()) is told

    on_a_bench(test)


def test_a_log_that_cannot_be_read_is_tried_again() -> None:
    async def test(bench: Bench) -> None:
        await bench.add()
        broken, bench.log.batches = bench.log.batches, []
        again = Bench(bench.log)
        await again.turn()
        assert error(again.get()) is ErrorCode.NOT_COORDINATOR
        bench.log.batches = broken
        await again.reload()
        assert await again.get() == 1

    on_a_bench(test)


def test_the_state_machine_is_called_when_its_deadline_comes() -> None:
    async def test(bench: Bench) -> None:
        started_ms = bench.clock.time_ms()
        late, early = bench.park(500), bench.park(100)
        bench.clock.advance(0.1)
        assert (early.result(), late.done()) == (started_ms + 100, False)
        bench.clock.advance(0.4)
        assert late.result() == started_ms + 500

    on_a_bench(test)


def test_what_was_asked_is_done_although_whoever_asked_is_gone() -> None:
    async def test(bench: Bench) -> None:
        gone = bench.add()
        gone.cancel()
        bench.log.commit()
        assert await bench.get() == 1

    on_a_bench(test, commits_at_once=False)


def test_closing_answers_everybody_and_refuses_the_next() -> None:
    async def test(bench: Bench) -> None:
        waiting = bench.park(1000)
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert error(waiting) is ErrorCode.NOT_COORDINATOR
        assert error(bench.get()) is ErrorCode.NOT_COORDINATOR
        await bench.reload()
        assert len(bench.machines) == 1, "it is not loaded again"

    on_a_bench(test)


def test_what_nobody_waits_for_is_done_once_the_shard_is_loaded() -> None:
    async def test(bench: Bench) -> None:
        await bench.add()
        again = Bench(bench.log)
        again.shard.execute(lambda machine, now_ms: Effects([("c", 7)]))
        await again.turn()
        assert await again.get() == 7

    on_a_bench(test)


def test_what_nobody_waits_for_is_tried_again_until_the_log_takes_it() -> None:
    async def test(bench: Bench) -> None:
        bench.log.refuses_with = ErrorCode.KAFKA_STORAGE_ERROR
        bench.shard.execute(lambda machine, now_ms: Effects([("c", 7)]))
        await bench.reload()
        bench.log.refuses_with = None
        await bench.reload()
        assert await bench.get() == 7

    on_a_bench(test)


def test_a_mistake_in_the_state_machine_is_not_built_upon() -> None:
    async def test(bench: Bench) -> None:
        def mistaken(machine: Counters, now_ms: int, token: Any) -> Effects[Any]:
            machine.values["c"] = 99
            raise ZeroDivisionError

        await bench.add()
        waiting = bench.park(1000)
        assert error(bench.shard.request(mistaken)) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert error(waiting) is ErrorCode.UNKNOWN_SERVER_ERROR
        await bench.reload()
        assert await bench.get() == 1

    on_a_bench(test)


def test_what_is_in_the_log_is_answered_although_the_shard_closes_before_its_commit() -> None:
    async def test(bench: Bench) -> None:
        stored, parked = bench.add(), bench.park(1000)
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert error(parked) is ErrorCode.NOT_COORDINATOR
        assert error(bench.add()) is ErrorCode.NOT_COORDINATOR
        assert not stored.done()
        bench.log.commit()
        assert await stored == 1

    on_a_bench(test, commits_at_once=False)


def test_a_commit_that_fails_after_the_end_is_told_too() -> None:
    async def test(bench: Bench) -> None:
        stored = bench.add()
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        bench.log.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        assert error(stored) is ErrorCode.NOT_COORDINATOR

    on_a_bench(test, commits_at_once=False)


class FaultyCodec(Counters.Codec):
    """Decoding has a mistake for as long as the test leaves it there."""

    is_faulty = True

    def decode(self, key: bytes, value: bytes | None) -> tuple[str, int]:
        if self.is_faulty:
            raise KeyError("a mistake")
        return super().decode(key, value)


def on_a_faulty_bench(test: Callable[[Bench, FaultyCodec], Any]) -> None:
    async def run() -> None:
        log, codec = MemoryInternalLog(), FaultyCodec()
        before = Bench(log)
        await before.turn()
        await before.add()
        bench = Bench(log, codec)
        await bench.turn()
        await test(bench, codec)

    asyncio.run(run())


def test_a_mistake_while_loading_is_shown_and_the_load_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench, codec: FaultyCodec) -> None:
        assert error(bench.get()) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "a mistake" in caplog.text
        codec.is_faulty = False
        await bench.reload()
        assert await bench.get() == 1

    on_a_faulty_bench(test)


def test_a_mistake_that_is_always_made_is_given_up_after_some_tries(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench, codec: FaultyCodec) -> None:
        for _ in range(1000):
            await bench.reload()
        assert len(bench.machines) == FAULTY_LOADS_MAX
        assert error(bench.get()) is ErrorCode.UNKNOWN_SERVER_ERROR
        assert "will not be retried" in caplog.text

    on_a_faulty_bench(test)


def test_a_log_that_cannot_be_read_again_and_again_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        await bench.add()
        bench.log.batches = []
        again = Bench(bench.log)
        await again.turn()
        for _ in range(3):
            await again.reload()

    on_a_bench(test)
    assert len([record for record in caplog.records if "must be replayed" in record.message]) == 1


def test_a_state_machine_knows_the_leader_epoch_of_its_partition() -> None:
    async def test(bench: Bench) -> None:
        assert [machine.leader_epoch for machine in bench.machines] == [LEADER_EPOCH]

    on_a_bench(test)


def test_tasks_are_handed_over_in_order_once_everything_seen_is_committed() -> None:
    async def test(bench: Bench) -> None:
        bench.give_tasks("a", "b")
        bench.give_tasks("c")
        await bench.turn()
        assert bench.performed == []
        bench.log.commit()
        assert bench.performed == ["a", "b", "c"]

    on_a_bench(test, commits_at_once=False)


def test_tasks_without_records_wait_for_what_the_state_machine_had_seen() -> None:
    async def test(bench: Bench) -> None:
        bench.add()
        bench.shard.execute(lambda machine, now_ms: Effects(tasks=["a"]))
        assert bench.performed == []
        bench.log.commit()
        assert bench.performed == ["a"]

    on_a_bench(test, commits_at_once=False)


def test_a_performer_may_come_back_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.on_task = lambda name: bench.shard.execute(lambda machine, now_ms: Effects([(name, 9)]))
        await bench.give_tasks("a")
        assert await bench.get("a") == 9

    on_a_bench(test)


def test_tasks_of_a_state_machine_that_was_thrown_away_are_dropped() -> None:
    async def test(bench: Bench) -> None:
        bench.give_tasks("a")
        bench.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
        bench.add()
        bench.log.refuses_with = None
        bench.log.commit()
        await bench.reload()
        assert await bench.get() == 1, "what it had appended is committed"
        assert bench.performed == []

    on_a_bench(test, commits_at_once=False)


def test_tasks_whose_commit_fails_are_dropped() -> None:
    async def test(bench: Bench) -> None:
        bench.give_tasks("a")
        bench.log.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        await bench.reload()
        assert (await bench.get(), bench.performed) == (0, [])

    on_a_bench(test, commits_at_once=False)


def test_tasks_of_a_shard_that_was_closed_are_dropped() -> None:
    async def test(bench: Bench) -> None:
        reply = bench.give_tasks("a")
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        bench.log.commit()
        assert (await reply, bench.performed) == (1, [])

    on_a_bench(test, commits_at_once=False)


def test_a_task_after_which_the_state_machine_is_thrown_away_is_the_last() -> None:
    async def test(bench: Bench) -> None:
        def refuse(name: str) -> None:
            bench.performed.append(name)
            bench.log.refuses_with = ErrorCode.KAFKA_STORAGE_ERROR
            bench.add()

        bench.on_task = refuse
        bench.give_tasks("a", "b")
        assert bench.performed == ["a"]

    on_a_bench(test)


def test_a_task_that_cannot_be_begun_is_found_again_by_a_new_state_machine(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        def fail(_name: str) -> None:
            raise ZeroDivisionError

        bench.on_task = fail
        assert await bench.give_tasks("a", "b") == 1
        await bench.reload()
        assert len(bench.machines) == 2
        assert caplog.text.count("the state machine failed") == 1

    on_a_bench(test)


def test_what_is_written_in_a_transaction_and_its_marker_are_batches_of_their_own() -> None:
    async def test(bench: Bench) -> None:
        bench.add()
        assert await bench.write_transaction() == 2
        headers = [parse_header(batch) for batch in bench.log.batches]
        assert [(each.producer_id, each.is_transactional, each.is_control) for each in headers] == [
            (-1, False, False),
            (7, True, False),
            (7, True, True),
        ]

    on_a_bench(test)


def test_a_transaction_comes_after_what_waits_for_its_round() -> None:
    async def test(bench: Bench) -> None:
        replies = [bench.add_in_round(), bench.write_transaction()]
        assert [reply.result() for reply in replies] == [1, 2]
        assert [parse_header(batch).is_transactional for batch in bench.log.batches] == [False, True, True]

    on_a_bench(test)


def test_a_transaction_is_replayed_when_written_as_when_loaded() -> None:
    async def test(bench: Bench) -> None:
        await bench.write_transaction()
        again = Bench(bench.log)
        await again.turn()
        for machine in bench.machines[0], again.machines[0]:
            assert machine.transactions == [(("t", 1), ("t", 2)), MARKER]
            assert machine.values == {}

    on_a_bench(test)


def test_a_transaction_that_the_log_refuses_throws_the_state_away() -> None:
    async def test(bench: Bench) -> None:
        bench.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
        assert error(bench.write_transaction()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.log.refuses_with = None
        await bench.reload()
        assert bench.machines[-1].transactions == []

    on_a_bench(test)


FENCED_REQUESTS = 1000


def test_a_thousand_fenced_requests_cost_everybody_else_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        await bench.write_transaction()
        parked, added = bench.park(1000), bench.add_in_round()
        written = len(bench.log.batches)
        codes = {error(bench.write_transaction(EndMarker(True, 0))) for _ in range(FENCED_REQUESTS)}
        assert codes == {ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert len(bench.log.batches) == written, "not even what waits for its round was appended for them"
        assert (await added, await bench.get(), parked.done()) == (1, 1, False)
        assert len(bench.machines) == 1, "the state machine was not thrown away"
        assert bench.machines[0].transactions == [(("t", 1), ("t", 2)), MARKER]

    on_a_bench(test)
    assert not caplog.records


def test_a_fenced_request_whose_asker_is_gone_is_dropped() -> None:
    async def test(bench: Bench) -> None:
        await bench.write_transaction()
        gone: Promise[int] = Promise()
        gone.cancel()
        stale = EndMarker(True, 0)
        bench.shard.request(lambda machine, now_ms, token: machine.write_transaction(now_ms, token, stale), gone)
        assert (gone.cancelled(), await bench.get()) == (True, 0)

    on_a_bench(test)
