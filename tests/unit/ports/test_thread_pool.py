from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from random import Random
from threading import Semaphore, Thread

import pytest

from flowstone.ports.thread_pool import ThreadPool

WAIT_S = 10


class Work:
    """Calls that last until they are released, and how many of them run."""

    def __init__(self) -> None:
        self.entered, self.released = Semaphore(0), Semaphore(0)
        self._lock = threading.Lock()
        self.running = 0
        self.most_running = 0
        self.done = 0

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.entered.release()
        assert self.released.acquire(timeout=WAIT_S)
        with self._lock:
            self.running -= 1
            self.done += 1

    def wait_entered(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=WAIT_S)


NewPool = Callable[[int], ThreadPool]


@pytest.fixture
def new_pool(request: pytest.FixtureRequest) -> Iterator[NewPool]:
    pools = []

    def new(thread_count: int) -> ThreadPool:
        pools.append(ThreadPool(thread_count, request.node.name))
        return pools[-1]

    yield new
    for pool in pools:
        pool.shutdown()


def threads(request: pytest.FixtureRequest) -> list[Thread]:
    return [each for each in threading.enumerate() if each.name.startswith(request.node.name)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def results(futures: list[Future[None]]) -> list[None]:
    return [each.result(WAIT_S) for each in futures]


def test_more_threads_begin_with_what_waits(new_pool: NewPool) -> None:
    pool, work = new_pool(2), Work()
    futures = [pool.submit(work) for _ in range(5)]
    work.wait_entered(2)
    assert work.running == 2
    pool.resize(4)
    work.wait_entered(2)
    assert work.running == 4
    work.released.release(5)
    results(futures)
    assert (work.done, work.most_running) == (5, 4)


def test_surplus_threads_end_after_what_they_run_and_the_others_do_the_rest(
    new_pool: NewPool, request: pytest.FixtureRequest
) -> None:
    pool, work = new_pool(4), Work()
    futures = [pool.submit(work) for _ in range(10)]
    work.wait_entered(4)
    pool.resize(1)
    assert work.running == 4
    work.released.release(4)
    work.wait_entered(1)
    wait_until(lambda: len(threads(request)) == 1)
    work.most_running = 0
    work.released.release(6)
    results(futures)
    assert (work.done, work.most_running) == (10, 1)


def test_idle_surplus_threads_end_at_once(new_pool: NewPool, request: pytest.FixtureRequest) -> None:
    pool, work = new_pool(3), Work()
    futures = [pool.submit(work) for _ in range(3)]
    work.wait_entered(3)
    work.released.release(3)
    results(futures)
    pool.resize(1)
    wait_until(lambda: len(threads(request)) == 1)
    work.released.release()
    pool.submit(work).result(WAIT_S)


def test_a_pool_that_shrinks_and_grows_meanwhile_keeps_its_threads(
    new_pool: NewPool, request: pytest.FixtureRequest
) -> None:
    pool, work = new_pool(2), Work()
    futures = [pool.submit(work) for _ in range(4)]
    work.wait_entered(2)
    pool.resize(1)
    pool.resize(2)
    assert len(threads(request)) == 2
    work.released.release(4)
    results(futures)
    assert work.done == 4


def test_each_call_runs_once_however_often_the_pool_changes(new_pool: NewPool) -> None:
    random, pool = Random(7), new_pool(1)
    runs = [0] * 3000

    def note(number: int) -> int:
        runs[number] += 1
        return number

    futures = []
    for number in range(len(runs)):
        futures.append(pool.submit(note, number))
        if random.random() < 0.1:
            pool.resize(random.randint(1, 8))
    assert [each.result(WAIT_S) for each in futures] == list(range(len(runs)))
    assert set(runs) == {1}


def test_an_error_is_the_callers(new_pool: NewPool) -> None:
    pool = new_pool(1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(WAIT_S)
    assert pool.submit(lambda: 5).result(WAIT_S) == 5


def test_a_call_that_has_ended_is_not_kept(new_pool: NewPool) -> None:
    class Held:
        pass

    pool, held = new_pool(1), Held()
    kept = weakref.ref(held)
    pool.submit(lambda each: None, held).result(WAIT_S)
    del held
    wait_until(lambda: kept() is None)


def test_a_pool_that_is_shut_down_does_what_waits_and_takes_no_more(
    new_pool: NewPool, request: pytest.FixtureRequest
) -> None:
    pool, work = new_pool(1), Work()
    futures = [pool.submit(work) for _ in range(3)]
    work.released.release(3)
    pool.shutdown()
    assert all(each.done() for each in futures)
    assert threads(request) == []
    pool.resize(4)
    with pytest.raises(RuntimeError):
        pool.submit(work)
    assert threads(request) == []


def test_what_waits_is_cancelled_if_that_is_asked_for(new_pool: NewPool) -> None:
    pool, work = new_pool(1), Work()
    running, waiting = pool.submit(work), pool.submit(work)
    work.wait_entered(1)
    work.released.release()
    pool.shutdown(cancel_futures=True)
    assert running.done()
    assert not running.cancelled()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)


def test_fewer_threads_do_the_work_if_the_system_starts_no_more(
    new_pool: NewPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, unable, work = new_pool(1), new_pool(1), Work()
    first = pool.submit(work)
    work.wait_entered(1)
    monkeypatch.setattr(Thread, "start", refuse)
    pool.resize(2)
    second = pool.submit(work)
    work.released.release(2)
    results([first, second])
    with pytest.raises(RuntimeError):
        unable.submit(work)
    monkeypatch.undo()
    assert unable.submit(int).result(WAIT_S) == 0
