"""A broker killed at every write and every flush of a transaction's end: each one is visible completely, or not at all.

Both protocols, commits and aborts. First a broker notes down what it does with its files from EndTxn on, until the
markers are written and the next transaction is: the state of the transaction, markers, offsets' marker, the index of
aborted transactions, snapshots of producers. Each of these calls is a point to die at, before it, after it, and
halfway through if it writes. FLOWSTONE_FAULTS_TRANSACTION_KILLS sets at how many points a broker dies,
FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.broker_process import UP, BrokerDied, BrokerProcess

from .dying_up import ANYWHERE
from .raw_bank import PARTITIONS, TOPIC, RawBank

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_TRANSACTION_KILLS", "8"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILLS_PER_DIRECTORY = 10
DYING_UP = Path(__file__).with_name("dying_up.py")
SETTINGS = {
    "log.roll.ms": "1",  # every append starts a segment, and seals the one before with its indexes and snapshots
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "150",
    "log.segment.delete.delay.ms": "0",
}
RECOVERY_CALLS_MAX = 20
RECOVERY_CHANCE, WAITS_CHANCE = 0.3, 0.2


class Scene(NamedTuple):
    protocol: int
    commits: bool


class Point(NamedTuple):
    scene: Scene
    call: str
    number: int
    moment: str

    def __str__(self) -> str:
        return f"{self.call}:{self.number}:{self.moment}"


SCENES = [Scene(protocol, commits) for protocol in (1, 2) for commits in (True, False)]


def end_and_go_on(bank: RawBank, scene: Scene) -> None:
    """What a broker is to die in: the end of a transaction, and another one after it."""
    bank.end(scene.protocol, commit=scene.commits)
    bank.write(scene.protocol)
    bank.end(scene.protocol, commit=True)
    bank.wait_complete()


class Lives:
    """Brokers on one data directory, one after the other, with one producer that goes on."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._chance = chance
        self.bank = RawBank()
        self.output = ""
        self._data, self._arm, self._record = directory / "data", directory / "arm", directory / "record"
        with self._start() as broker, broker.connect() as client:
            client.create_topic(TOPIC, PARTITIONS)
            self.bank.connect(client)
            self.bank.begin()

    def _start(self, *how: str) -> BrokerProcess:
        program: Sequence[str] = (sys.executable, str(DYING_UP), str(self._arm), *how) if how else UP
        return BrokerProcess(self._data, settings=SETTINGS, program=program)

    def record(self, scene: Scene) -> Counter[str]:
        """How often which call is made."""
        self._record.write_text("")
        self._live(scene, "record", str(self._record))
        return Counter(self._record.read_text().splitlines())

    def die(self, point: Point) -> bool:
        """Whether the broker came to the point; all was right before."""
        return not self._live(point.scene, str(point))

    def die_in_recovery(self, number: int) -> bool:
        """Whether the broker made so many writes in its start; it dies in the midst of the last one."""
        self._arm.touch()
        broker = self._start(f"write {ANYWHERE}:{number}:half")
        try:
            with suppress(BrokerDied):
                broker.wait_ready()
            return not broker.is_running
        finally:
            self._end(broker)

    def check(self) -> None:
        with self._start() as broker, broker.connect() as client:
            self.bank.connect(client)
            self.bank.check(waits=True)

    def _live(self, scene: Scene, *how: str) -> bool:
        """Whether the broker lived to the end of its transactions."""
        broker = self._start(*how)
        try:
            with broker, broker.connect() as client:
                self.bank.connect(client)
                self.bank.check(waits=self._chance.random() < WAITS_CHANCE)
                self.bank.begin()
                self.bank.write(scene.protocol)
                self._arm.touch()
                with suppress(ConnectionError):
                    end_and_go_on(self.bank, scene)
                    return True
                return False
        finally:
            self._end(broker)

    def _end(self, broker: BrokerProcess) -> None:
        broker.kill()
        self._arm.unlink(missing_ok=True)
        self.output += broker.output


def points_of(recorded: dict[Scene, Counter[str]]) -> list[Point]:
    """Every call of every scene, with its moments."""
    return [
        Point(scene, call, number, moment)
        for scene, calls in recorded.items()
        for call, count in sorted(calls.items())
        for number in range(1, count + 1)
        for moment in (("before", "half", "after") if call.startswith("write ") else ("before", "after"))
    ]


def mixed(points: Sequence[Point], chance: random.Random) -> list[Point]:
    """The points, those in front of different kinds: a write or flush of a log is one for each scene and moment."""
    kinds: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        is_log = point.call.endswith(" .log") and not point.call.startswith("open ")
        kind = (point.call, point.scene, point.moment) if is_log else (point.call,)
        kinds.setdefault(kind, []).append(point)
    for each in kinds.values():
        chance.shuffle(each)
    order = list(kinds.values())
    chance.shuffle(order)
    return [each.pop() for _ in points for each in order if each]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    lives = Lives(tmp_path_factory.mktemp("recorded"), random.Random(FIRST_SEED))
    for scene in SCENES:  # the first ones make files, of internal topics and of partitions
        lives.record(scene)
    points = points_of({scene: lives.record(scene) for scene in SCENES})
    calls = {point.call for point in points}
    assert {"write __transaction_state-0 .log", "write __consumer_offsets-0 .log", "sync accounts-0 .log"} <= calls
    assert any(".txnindex" in call for call in calls), calls
    assert any(".snapshot" in call for call in calls), calls
    return mixed(points, random.Random(FIRST_SEED))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(max(KILLS // KILLS_PER_DIRECTORY, 1)))
def test_a_broker_killed_in_any_write_of_a_transactions_end_shows_all_of_it_or_nothing(
    tmp_path: Path, points: list[Point], part: int
) -> None:
    count = min(KILLS, KILLS_PER_DIRECTORY)
    chance, reached = random.Random(FIRST_SEED + part), 0
    lives = Lives(tmp_path, chance)
    for at in range(part * count, (part + 1) * count):
        point = points[at % len(points)]
        print(point.scene, point)
        reached += lives.die(point)
        if chance.random() < RECOVERY_CHANCE:
            lives.die_in_recovery(chance.randint(1, RECOVERY_CALLS_MAX))
    lives.check()
    assert " ERROR " not in lives.output, lives.output
    assert reached >= count * 0.7, f"{reached} of {count} points"
    print(f"{reached} of {count} points of {len(points)}, {len(lives.bank.committed)} commits acknowledged")
