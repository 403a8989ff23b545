"""One client, one request at a time: when the loop polls for the next one."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.network.busy_poll import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    PREEMPTED_S,
    ROW_MAX,
    ROW_MIN,
    SOON_S,
    BusyPoller,
)
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.kernel import KERNEL
from flowstone.ports.file_syncs import FileSyncs
from flowstone.ports.files import File
from flowstone.ports.system_files import SystemFile
from tests.support.wire_client import Client, batch_of

POLL_S = 0.0004
STEP_S = 0.0001
POLL_TAKES_S = 0.000003
# A test's client runs in the broker's process and is not always quick.
POLL_US_IN_TESTS = 10_000


class Loop:
    """A loop with one busy-poller, and a clock that moves when it is told to."""

    def __init__(self, poll_s: float = POLL_S) -> None:
        self.now = 100.0
        self.scheduled: deque[Callable[[], None]] = deque()
        self.busy_poller = BusyPoller(self.scheduled.append, lambda: self.now, poll_s)

    def asks(self, connection: str, times: int = 1, step_s: float = STEP_S) -> None:
        for _ in range(times):
            self.now += step_s
            self.busy_poller.asked(connection, self.now)

    def polls(self, seconds: float, poll_takes_s: float = POLL_TAKES_S) -> int:
        """Return how often the loop polls in this time before it sleeps."""
        polls, end = 0, self.now + seconds
        while self.scheduled and self.now < end:
            self.now += poll_takes_s
            self.scheduled.popleft()()
            polls += 1
        return polls


def test_the_loop_polls_for_a_client_that_sends_one_request_after_the_other_and_stops_in_time() -> None:
    loop = Loop()
    loop.asks("a", ROW_MIN)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.polls(1) == pytest.approx(POLL_S / POLL_TAKES_S, rel=0.05)
    assert not loop.scheduled


def test_the_loop_polls_again_after_an_answer_that_had_to_wait() -> None:
    loop = Loop()
    loop.asks("a", ROW_MIN + 1)
    assert loop.polls(1)
    loop.now += 5 * POLL_S  # the disk
    loop.busy_poller.answered("a", loop.now)
    assert loop.polls(POLL_S / 2)
    loop.asks("a", step_s=0)
    assert loop.polls(1) == pytest.approx(POLL_S / POLL_TAKES_S, rel=0.05)


@pytest.mark.parametrize("others_ask", [True, False])
def test_the_loop_sleeps_under_any_other_load(others_ask: bool) -> None:
    loop = Loop()
    for _ in range(20):
        loop.asks("a", ROW_MIN - 1)
        loop.asks("b") if others_ask else loop.asks("a", step_s=2 * POLL_S)
    assert not loop.scheduled


def test_one_pause_does_not_end_a_long_row_but_two_do() -> None:
    loop = Loop()
    loop.asks("a", 10 * ROW_MAX)
    loop.polls(1)
    loop.asks("a", step_s=2 * POLL_S)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.scheduled
    loop.polls(1)
    loop.asks("a", 2, step_s=2 * POLL_S)
    loop.asks("a")
    assert not loop.scheduled


def test_a_client_that_falls_silent_begins_a_new_row() -> None:
    loop = Loop()
    loop.asks("a", 10 * ROW_MAX)
    loop.polls(1)
    loop.asks("a", ROW_MAX, step_s=2 * POLL_S)
    loop.asks("a", ROW_MIN - 1)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.scheduled


def test_the_loop_does_not_poll_for_a_connection_that_is_gone() -> None:
    loop = Loop()
    loop.asks("a", ROW_MIN + 1)
    loop.polls(1)
    loop.busy_poller.forget("b")
    loop.busy_poller.answered("a", loop.now)
    assert loop.polls(1)
    loop.busy_poller.forget("a")
    loop.busy_poller.answered("a", loop.now)
    assert not loop.scheduled


def test_the_loop_never_polls_if_polling_is_switched_off() -> None:
    loop = Loop(poll_s=0.0)
    loop.asks("a", 100)
    assert not loop.scheduled


def preempt(loop: Loop) -> None:
    loop.asks("a", ROW_MIN + 1)
    assert loop.polls(1, poll_takes_s=2 * PREEMPTED_S) == 1


def undisturbed(loop: Loop, seconds: float) -> None:
    for _ in range(int(seconds / STEP_S)):
        loop.asks("a", step_s=0)
        loop.polls(STEP_S)


def backoff(loop: Loop) -> float:
    """Return how long the loop does not poll although requests come all the time."""
    began = loop.now
    while not loop.scheduled:
        loop.asks("a")
    return loop.now - began


def test_a_loop_that_is_preempted_once_goes_on_polling() -> None:
    loop = Loop()
    for _ in range(10):
        loop.asks("a", ROW_MIN + 1)
        assert loop.polls(PREEMPTED_S, poll_takes_s=1.1 * PREEMPTED_S) == 1
        assert loop.scheduled
        undisturbed(loop, 2 * SOON_S)


def test_a_loop_that_is_preempted_again_and_again_backs_off_for_longer_each_time() -> None:
    loop, backoffs = Loop(), []
    loop.asks("a", ROW_MIN + 1)
    loop.polls(2 * PREEMPTED_S, poll_takes_s=2 * PREEMPTED_S)
    for _ in range(10):
        preempt(loop)
        backoffs.append(backoff(loop))
    assert backoffs[0] == pytest.approx(BACKOFF_MIN_S, abs=2 * STEP_S)
    assert backoffs[3] == pytest.approx(8 * BACKOFF_MIN_S, abs=2 * STEP_S)
    assert backoffs[-1] == pytest.approx(BACKOFF_MAX_S, abs=2 * STEP_S)
    undisturbed(loop, 2 * SOON_S)
    loop.polls(2 * PREEMPTED_S, poll_takes_s=2 * PREEMPTED_S)
    preempt(loop)
    assert backoff(loop) == pytest.approx(BACKOFF_MIN_S, abs=2 * STEP_S)


# Over real sockets


@pytest.fixture
def address(tmp_path: Path) -> Iterator[tuple[str, int]]:
    with Broker(data=str(tmp_path), settings={"idle.poll.us": POLL_US_IN_TESTS, "flush.messages": 1}) as broker:
        host, _, port = broker.bootstrap.partition(":")
        yield host, int(port)


def produce(client: Client) -> tuple[int, int]:
    result = client.produce("t", batch_of(b"value"))
    return result.error_code, result.base_offset


def test_whoever_has_the_answer_finds_the_record(address: tuple[str, int]) -> None:
    with Client(address) as client, Client(address) as other:
        client.create_topic("t")
        for number in range(100):
            assert produce(client) == (0, number)
            assert other.end_offset("t") == number + 1


@pytest.mark.skipif(KERNEL != "native", reason="no native kernel: Python threads flush")
def test_a_flush_that_fails_is_answered_with_its_error(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()  # which no file system can sync
    with Client(address) as client:
        client.create_topic("t")
        produce(client)
        submit = FileSyncs.submit

        def and_a_pipe(syncs: FileSyncs[Any], token: Any, files: Sequence[File]) -> None:
            submit(syncs, token, [*files, SystemFile("a pipe", write_end)])

        monkeypatch.setattr(FileSyncs, "submit", and_a_pipe)
        assert produce(client) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    os.close(read_end)
