"""The measure of stretches tells the broker's own time from that of other programs, and says where it went."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.hostile.loop_watch import LoopWatch, Stretch
from tests.support.running_app import LoopThread

pytestmark = pytest.mark.measures_time
WORK_S = 0.1
# A tenth more or less.
ABOUT = 0.1 * WORK_S


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as running:
        yield running


def run() -> None:
    until_s = time.thread_time() + WORK_S
    while time.thread_time() < until_s:
        pass


def test_work_counts(loop: LoopThread) -> None:
    with LoopWatch(loop) as watch:
        loop.call(run)
    assert watch.longest.ran_s == pytest.approx(WORK_S, abs=ABOUT)
    assert watch.longest_s >= WORK_S


def test_waiting_for_a_lock_or_the_disk_counts(loop: LoopThread) -> None:
    with LoopWatch(loop) as watch:
        loop.call(lambda: time.sleep(WORK_S))
    assert watch.longest.blocked_s == pytest.approx(WORK_S, abs=ABOUT)
    assert watch.longest.ran_s < ABOUT
    assert watch.longest_s >= WORK_S - ABOUT


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound to a processor")
def test_what_other_programs_take_does_not_count(loop: LoopThread) -> None:
    """Another program is given the loop's processor, half of the time."""
    loop.call(lambda: os.sched_setaffinity(0, {0}))
    bound = "import os; os.sched_setaffinity(0, {0}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", bound], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            with LoopWatch(loop) as watch:
                loop.call(run)
        finally:
            other.kill()
    assert watch.longest.preempted_s > 0.2 * WORK_S
    assert watch.longest_s == pytest.approx(WORK_S, abs=3 * ABOUT)
    assert watch.longest_s < watch.longest.wall_s - 0.2 * WORK_S


def test_collections_of_garbage_are_named(loop: LoopThread) -> None:
    kept = [[index] for index in range(200_000)]
    with LoopWatch(loop) as watch:
        loop.call(gc.collect)
    assert len(kept)
    assert 0 < watch.longest.collected_s <= watch.longest.ran_s
    assert watch.longest.collected_s > 0.5 * watch.longest.held_s


def test_a_stretch_says_where_it_went() -> None:
    stretch = Stretch(wall_s=0.1, ran_s=0.04, collected_s=0.01, preempted_s=0.05)
    assert stretch.blocked_s == pytest.approx(0.01)
    assert str(stretch) == "50.0 ms (ran 40.0, of it collecting 10.0; blocked 10.0; preempted 50.0)"
