"""What a coordinator's runtime promises its state machine, its log and whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.coordinator.append_rounds import CROWD_SHARDS
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.runtime import FAULTY_LOADS_MAX
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import parse_header
from tests.support.internal_log import MemoryInternalLog
from tests.unit.coordinator.counting_shard import LEADER_EPOCH, MARKER, Bench, Counters, error, on_a_bench


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


def test_a_state_machine_is_looked_at_only_while_all_it_has_seen_is_committed() -> None:
    async def test(bench: Bench) -> None:
        def value() -> int | None:
            return bench.shard.look(lambda machine: machine.values.get("c", 0))

        assert value() == 0
        bench.add()
        assert value() is None, "not committed"
        bench.log.commit()
        assert value() == 1
        bench.add_in_round()
        assert value() is None, "not appended"
        bench.log.refuses_with = ErrorCode.NOT_ENOUGH_REPLICAS
        bench.add()
        assert value() is None, "not loaded"
        bench.log.refuses_with = None
        await bench.reload()
        assert value() == 1
        bench.shard.close(ErrorCode.NOT_COORDINATOR)
        assert value() is None

    on_a_bench(test, commits_at_once=False)


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
