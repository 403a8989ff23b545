"""A broker killed inside an exact system call of compaction, retention, a branch and a deletion: nothing lost, nothing
half done, and the next life comes to the end of it.

strace is attached to the running broker just before the operation begins, and kills whoever comes to the N-th call of
one kind (each thread counts for itself, the compaction's worker process included). All calls are tried in turn: N grows
until the operation is over before anybody gets there. FLOWSTONE_FAULTS_LIFE_CYCLE=all does that; otherwise a few of
them are chosen, from FLOWSTONE_FAULTS_SEED on.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

from .admin_client import AdminClient
from .crash_points import HAS_TRACER
from .life_cycle import SCENES, Scene, Truth, fill, start

ALL = os.environ.get("FLOWSTONE_FAULTS_LIFE_CYCLE") == "all"
SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
FEW = 1  # of each scene
# What changes a file system, and the calls that make it durable; each with how many of them are tried at most.
SYSTEM_CALLS = {
    "rename": 12,
    "link": 24,
    "mkdir": 8,
    "unlink": 12,
    "unlinkat": 12,
    "fsync": 12,
    "fdatasync": 16,
    "ftruncate": 10,
    "pwritev": 12,
    "pwritev2": 12,
    "write": 8,
    "openat": 24,
    "copy_file_range": 4,
}
# Those each scene makes in its first steps, for the few.
LIKELY = {
    "Compaction": ("rename", "fdatasync", "unlink", "fsync"),
    "Retention": ("rename", "fsync", "unlink", "fdatasync"),
    "Expiry": ("rename", "fsync", "unlink", "openat"),
    "Branching": ("link", "mkdir", "rename", "fsync", "fdatasync"),
    "PastBranching": ("link", "copy_file_range", "rename", "pwritev", "fdatasync"),
    "Deletion": ("rename", "unlinkat", "fsync", "fdatasync"),
}
ATTACH_S = 10

pytestmark = pytest.mark.skipif(not HAS_TRACER, reason="there is no strace here")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    data = tmp_path_factory.mktemp("life") / "data"
    return data, fill(data)


@contextmanager
def killing(broker: BrokerProcess, system_call: str, number: int, log: Path) -> Iterator[None]:
    """Whoever comes to that call is killed, from now on."""
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-p", str(broker.pid), "-o", str(log)),
            *("-e", f"trace={system_call}", "-e", f"inject={system_call}:signal=KILL:when={number}"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.kill()
        tracer.communicate(timeout=ATTACH_S)


def crash(data: Path, scene: type[Scene], truth: Truth, system_call: str, number: int) -> bool:
    """Whether anybody got to the call; all that must be true is, whoever it was."""
    log = data.parent / "strace"

    def is_killed() -> bool:
        return log.exists() and "killed by SIGKILL" in log.read_text()

    log.unlink(missing_ok=True)
    with start(data) as broker, AdminClient(broker.bootstrap) as client:
        with killing(broker, system_call, number, log), suppress(ConnectionError):
            scene(data, truth, is_killed).act(broker, client)
        broker.kill()
    with start(data) as broker, AdminClient(broker.bootstrap) as client:
        scene(data, truth).check(broker, client)
        assert " ERROR " not in broker.output, broker.output
    return is_killed()


def points(scene: type[Scene]) -> Iterator[tuple[str, int]]:
    """Which are tried, if the operation gets there."""
    if ALL:
        yield from ((call, number) for call, most in SYSTEM_CALLS.items() for number in range(1, most + 1))
        return
    chance = random.Random(f"{SEED} {scene.__name__}")
    likely = LIKELY[scene.__name__]
    for call in chance.sample(likely, len(likely)):
        yield call, chance.randint(1, 3)


@pytest.mark.timeout(1800 if ALL else 120)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.lower())
def test_a_kill_inside_any_system_call_loses_nothing_and_leaves_nothing_half_done(
    filled: tuple[Path, Truth], tmp_path: Path, scene: type[Scene]
) -> None:
    template, truth = filled
    crashes, over = 0, set[str]()
    for call, number in points(scene):
        if call in over:
            continue
        if crashes == FEW and not ALL:
            break
        data = tmp_path / "data"
        shutil.copytree(template, data)
        try:
            if crash(data, scene, truth, call, number):
                crashes += 1
            else:
                over.add(call)
        except BaseException:
            print(f"killed at {call} {number}")
            raise
        shutil.rmtree(data)
    print(f"{scene.__name__}: {crashes} crashes")
    assert crashes
