"""The requests of a fetch session field by field, and how long a follower waits after a failure or at its rate."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.errors import ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.replica_fetch_session import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    FETCH_BYTES_MIN,
    Limits,
    ReplicaFetchSession,
)
from flowstone.replication.replica_fetchers import Counts, Node, ReplicaFetcher, ReplicaFetchers, _flushed
from flowstone.replication.throttle import Throttle
from tests.support.partitions import flush
from tests.unit.replication.fetch_interpreter import BROKER_EPOCH, FOLLOWER, TOPIC_ID, FetchInterpreter

NOW_S = 1000.0


def following(*commands: str) -> FetchInterpreter:
    made = FetchInterpreter()
    for command in commands:
        made.run(command)
    return made


def test_a_request_says_who_asks_for_what_and_how_much_may_be_answered() -> None:
    made = following("follow a b epoch=3", "ask", "answer 7 a=+2", "flush")
    made.fetches._limits = Limits(max_wait_ms=400, response_max_bytes=5000, partition_max_bytes=700)
    request = made.fetches.request(BROKER_EPOCH, NOW_S)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (FOLLOWER, BROKER_EPOCH)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (400, FETCH_BYTES_MIN, 5000)
    assert (request.session_id, request.session_epoch) == (7, 1)
    (topic,) = request.topics
    assert topic.topic_id == TOPIC_ID
    (asked,) = topic.partitions
    assert (asked.partition, asked.current_leader_epoch, asked.fetch_offset, asked.last_fetched_epoch) == (0, 3, 2, 3)
    assert (asked.log_start_offset, asked.partition_max_bytes) == (0, 700)
    assert request.forgotten_topics_data == []


def test_the_partitions_that_are_followed_are_known() -> None:
    made = following("follow a b")
    assert list(made.fetches) == [made.partitions["a"], made.partitions["b"]]
    made.run("unfollow a")
    made.run("unfollow a")
    assert (len(made.fetches), list(made.fetches)) == (1, [made.partitions["b"]])


def test_a_partition_has_a_new_leader_if_it_was_not_asked_for_in_this_leader_epoch() -> None:
    made = following("follow a epoch=1")
    a = made.partitions["a"]
    assert made.fetches.add(a)  # nothing was asked for yet
    made.run("ask")
    assert not made.fetches.add(a)
    made.run("follow a epoch=2")
    assert made.fetches.add(a)
    made.run("unfollow a")
    assert made.fetches.add(a)


def test_each_failure_in_a_row_doubles_the_delay_up_to_a_limit() -> None:
    made = following("follow a", "ask")
    a = made.partitions["a"]
    delays = []
    for _ in range(12):
        made.fetches.failed(a, made.now_s)
        delays.append(made.fetches.waits_until_s(made.now_s) - made.now_s)
        made.now_s += delays[-1]
        made.run("ask")
    expected = [min(BACKOFF_FIRST_S * 2**failures, BACKOFF_MAX_S) for failures in range(12)]
    assert delays == pytest.approx(expected)
    assert delays[0] == pytest.approx(BACKOFF_FIRST_S)
    assert delays[-1] == pytest.approx(BACKOFF_MAX_S)
    made.run("answer 7 a=+1")
    made.run("flush")
    made.run("ask")
    made.fetches.failed(a, made.now_s)
    assert made.fetches.waits_until_s(made.now_s) - made.now_s == pytest.approx(BACKOFF_FIRST_S)


def test_a_delay_is_over_at_its_time_and_not_before() -> None:
    made = following("follow a", "ask")
    made.fetches.failed(made.partitions["a"], NOW_S)
    due_s = made.fetches.waits_until_s(NOW_S)
    assert made.fetches.request(BROKER_EPOCH, due_s - 0.001).topics == []
    assert len(made.fetches.request(BROKER_EPOCH, due_s).topics) == 1


def test_something_is_due_while_one_partition_does_not_wait() -> None:
    made = following("follow a b", "ask")
    made.fetches.failed(made.partitions["a"], NOW_S)
    assert made.fetches.waits_until_s(NOW_S) == -math.inf
    made.fetches.failed(made.partitions["b"], NOW_S + 5)
    assert made.fetches.waits_until_s(NOW_S + 5) == pytest.approx(NOW_S + BACKOFF_FIRST_S)
    assert ReplicaFetchSession(FOLLOWER, Limits(1, 1, 1), Throttle(1)).waits_until_s(NOW_S) == math.inf


def test_a_leader_waits_no_longer_than_until_another_partition_is_due() -> None:
    made = following("follow a b", "ask")
    made.fetches.failed(made.partitions["a"], NOW_S)
    assert made.fetches.request(BROKER_EPOCH, NOW_S).max_wait_ms == math.ceil(BACKOFF_FIRST_S * 1000)
    made.fetches.failed(made.partitions["a"], NOW_S + 100)
    assert made.fetches.request(BROKER_EPOCH, NOW_S).max_wait_ms == 500


# Throttled replication


def test_bytes_that_were_moved_delay_the_next_ones_at_the_rate() -> None:
    throttle = Throttle(100)
    throttle.spend(50, 10.0)
    assert throttle.free_at_s == 10.5
    throttle.spend(50, 10.0)
    assert throttle.free_at_s == 11.0
    throttle.spend(100, 20.0)
    assert throttle.free_at_s == 21.0
    throttle.bytes_per_s = 0
    throttle.spend(5, 30.0)
    assert throttle.free_at_s == 35.0


def test_a_follower_out_of_sync_asks_again_when_the_throttle_is_free_and_one_in_sync_always() -> None:
    made = following("follow a isr=1", "follow b")
    made.throttle.free_at_s = NOW_S + 2
    request = made.fetches.request(BROKER_EPOCH, NOW_S)
    assert [each.partition for topic in request.topics for each in topic.partitions] == [1]
    made.run("unfollow b")
    assert made.fetches.waits_until_s(NOW_S) == NOW_S + 2
    made = following("follow a isr=1")
    made.throttle.free_at_s = NOW_S
    assert len(made.fetches.request(BROKER_EPOCH, NOW_S).topics) == 1


def test_the_rate_of_all_fetchers_can_be_changed() -> None:
    nothing: Any = None
    fetchers = ReplicaFetchers(FOLLOWER, lambda: BROKER_EPOCH, Limits(1, 1, 1), 100, nothing, nothing)
    session = fetchers._new_fetches()
    assert session._throttle.bytes_per_s == 100
    fetchers.throttle_to(7)
    assert session._throttle.bytes_per_s == 7


# The fetcher


class Session:
    """A fetch session in which there is something to ask for at a time."""

    def __init__(self, due_s: float) -> None:
        self.due_s, self.asked = due_s, 0

    def waits_until_s(self, now_s: float) -> float:
        self.asked += 1
        return self.due_s

    def disconnected(self) -> None:
        pass


def waiting_fetcher(due_s: Callable[[float], float], body: Callable[[ReplicaFetcher, Any, Any, Any], Any]) -> None:
    """Run `body` with a fetcher that waits for work, its session, its clock and the task that waits."""

    async def run() -> None:
        clock, network = SimulatedClock(), object()
        session: Any = Session(due_s(clock.monotonic()))
        fetcher = ReplicaFetcher(
            ("host", 1),
            session,
            clock,
            network,
            Node(FOLLOWER, lambda: BROKER_EPOCH),
            Counts(),  # type: ignore[arg-type]
        )
        fetcher._task.cancel()
        task = asyncio.ensure_future(fetcher._wait_for_work())
        await turns()
        await body(fetcher, session, clock, task)
        task.cancel()
        fetcher.close()

    asyncio.run(run())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_fetcher_sleeps_until_something_is_due() -> None:
    async def body(fetcher: ReplicaFetcher, session: Session, clock: SimulatedClock, task: asyncio.Task[None]) -> None:
        assert (session.asked, task.done()) == (1, False)
        clock.advance(4.9)
        await turns()
        assert (session.asked, task.done()) == (1, False)
        clock.advance(0.1)
        await turns()
        assert task.done()

    waiting_fetcher(lambda now_s: now_s + 5, body)


def test_a_fetcher_looks_again_when_something_has_changed() -> None:
    async def body(fetcher: ReplicaFetcher, session: Session, clock: SimulatedClock, task: asyncio.Task[None]) -> None:
        assert (session.asked, task.done()) == (1, False)
        fetcher.changed(is_urgent=False)
        await turns()
        assert (session.asked, task.done()) == (2, False)
        session.due_s = -math.inf
        fetcher.changed(is_urgent=True)
        await turns()
        assert task.done()
        assert fetcher._interrupting is None  # it was not asking

    waiting_fetcher(lambda now_s: math.inf, body)


def test_a_fetch_waits_until_everything_is_flushed_or_never_will_be() -> None:
    made = following("follow a b", "ask", "answer 7 a=+1 b=+2")
    a, b = made.partitions["a"], made.partitions["b"]

    async def body() -> None:
        await _flushed([])
        task = asyncio.ensure_future(_flushed([a, b]))
        await turns()
        assert not task.done()
        flush(a)
        await turns()
        assert not task.done()
        b.local.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await turns()
        assert task.done()

    asyncio.run(body())
