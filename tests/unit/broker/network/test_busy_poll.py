"""One client, one request at a time: when the loop looks out for it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.network.busy_poll import (
    PUT_ASIDE_S,
    REST_MAX_S,
    REST_MIN_S,
    SOON_S,
    STEPS_KEPT,
    STEPS_MIN,
    LockStep,
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
LOOK_S = 0.000003
# A test's client runs in the broker's process and is not always quick.
POLL_US_IN_TESTS = 10_000


class Loop:
    """A loop of one lock-step, and a clock that moves when it is told to."""

    def __init__(self, poll_s: float = POLL_S) -> None:
        self.now = 100.0
        self.scheduled: deque[Callable[[], None]] = deque()
        self.lock_step = LockStep(self.scheduled.append, lambda: self.now, poll_s)

    def asks(self, connection: str, times: int = 1, step_s: float = STEP_S) -> None:
        for _ in range(times):
            self.now += step_s
            self.lock_step.asked(connection, self.now)

    def looks(self, seconds: float, look_s: float = LOOK_S) -> int:
        """How often it looks in this time before it sleeps."""
        looks, end = 0, self.now + seconds
        while self.scheduled and self.now < end:
            self.now += look_s
            self.scheduled.popleft()()
            looks += 1
        return looks


def test_the_loop_looks_out_for_one_that_asks_step_by_step_and_gives_up_in_time() -> None:
    loop = Loop()
    loop.asks("a", STEPS_MIN)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.looks(1) == pytest.approx(POLL_S / LOOK_S, rel=0.05)
    assert not loop.scheduled


def test_an_answer_that_had_to_wait_has_it_look_out_again() -> None:
    loop = Loop()
    loop.asks("a", STEPS_MIN + 1)
    assert loop.looks(1)
    loop.now += 5 * POLL_S  # the disk
    loop.lock_step.answered("a", loop.now)
    assert loop.looks(POLL_S / 2)
    loop.asks("a", step_s=0)
    assert loop.looks(1) == pytest.approx(POLL_S / LOOK_S, rel=0.05)


@pytest.mark.parametrize("others_ask", [True, False])
def test_under_any_other_load_it_sleeps(others_ask: bool) -> None:
    loop = Loop()
    for _ in range(20):
        loop.asks("a", STEPS_MIN - 1)
        loop.asks("b") if others_ask else loop.asks("a", step_s=2 * POLL_S)
    assert not loop.scheduled


def test_one_pause_does_not_end_a_long_row_but_two_do() -> None:
    loop = Loop()
    loop.asks("a", 10 * STEPS_KEPT)
    loop.looks(1)
    loop.asks("a", step_s=2 * POLL_S)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.scheduled
    loop.looks(1)
    loop.asks("a", 2, step_s=2 * POLL_S)
    loop.asks("a")
    assert not loop.scheduled


def test_one_that_falls_silent_begins_anew() -> None:
    loop = Loop()
    loop.asks("a", 10 * STEPS_KEPT)
    loop.looks(1)
    loop.asks("a", STEPS_KEPT, step_s=2 * POLL_S)
    loop.asks("a", STEPS_MIN - 1)
    assert not loop.scheduled
    loop.asks("a")
    assert loop.scheduled


def test_a_connection_that_goes_is_forgotten() -> None:
    loop = Loop()
    loop.asks("a", STEPS_MIN + 1)
    loop.looks(1)
    loop.lock_step.forget("b")
    loop.lock_step.answered("a", loop.now)
    assert loop.looks(1)
    loop.lock_step.forget("a")
    loop.lock_step.answered("a", loop.now)
    assert not loop.scheduled


def test_it_never_looks_out_where_that_is_switched_off() -> None:
    loop = Loop(poll_s=0.0)
    loop.asks("a", 100)
    assert not loop.scheduled


def put_aside(loop: Loop) -> None:
    loop.asks("a", STEPS_MIN + 1)
    assert loop.looks(1, look_s=2 * PUT_ASIDE_S) == 1


def undisturbed(loop: Loop, seconds: float) -> None:
    for _ in range(int(seconds / STEP_S)):
        loop.asks("a", step_s=0)
        loop.looks(STEP_S)


def rest(loop: Loop) -> float:
    """How long it sleeps although it is asked all the time."""
    began = loop.now
    while not loop.scheduled:
        loop.asks("a")
    return loop.now - began


def test_a_loop_that_is_put_aside_once_goes_on_looking() -> None:
    loop = Loop()
    for _ in range(10):
        loop.asks("a", STEPS_MIN + 1)
        assert loop.looks(PUT_ASIDE_S, look_s=1.1 * PUT_ASIDE_S) == 1
        assert loop.scheduled
        undisturbed(loop, 2 * SOON_S)


def test_a_loop_that_is_put_aside_again_and_again_rests_for_longer_each_time() -> None:
    loop, rests = Loop(), []
    loop.asks("a", STEPS_MIN + 1)
    loop.looks(2 * PUT_ASIDE_S, look_s=2 * PUT_ASIDE_S)
    for _ in range(10):
        put_aside(loop)
        rests.append(rest(loop))
    assert rests[0] == pytest.approx(REST_MIN_S, abs=2 * STEP_S)
    assert rests[3] == pytest.approx(8 * REST_MIN_S, abs=2 * STEP_S)
    assert rests[-1] == pytest.approx(REST_MAX_S, abs=2 * STEP_S)
    undisturbed(loop, 2 * SOON_S)
    loop.looks(2 * PUT_ASIDE_S, look_s=2 * PUT_ASIDE_S)
    put_aside(loop)
    assert rest(loop) == pytest.approx(REST_MIN_S, abs=2 * STEP_S)


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
