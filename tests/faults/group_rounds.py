"""A group's lives: the broker starts, the group settles, works and rebalances, and the broker is killed in the middle.

The members live through all of it. While the broker is away they are held back, so that the first thing it is asked is
what it kept of every commit that it had acknowledged.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from flowstone.types import TopicPartition
from flowstone.wire.messages import generated as messages
from tests.support.broker_process import BrokerDied, BrokerProcess
from tests.support.ports import HOST, free_ports

from .checker import ACKS_ALL, Anomaly, History
from .crash_points import CrashPoint
from .group_history import GroupHistory
from .group_member import GROUP, SESSION_MS, Member, committed_offsets
from .raw_client import FIND_COORDINATOR, LATEST, RawClient
from .small_broker import SmallBroker
from .traffic import RawProducer

SABOTAGED_GROUPS = Path(__file__).with_name("sabotaged_groups.py")
COMPACT_OFTEN = "compact_often"
TOPIC = "orders"
PARTITION_COUNT = 5
STEADY_MEMBERS, RESTLESS_MEMBERS = 2, 2
SETTLE_S_MAX = SESSION_MS / 1000 + 3.0  # a session that must end first, and a little on a busy machine
CATCH_UP_S_MAX = 15.0
LOAD_S_MAX = 1.0
POLL_S = 0.002
SETTINGS = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
}


class GroupRounds:
    def __init__(
        self,
        data: Path,
        stack: ExitStack,
        *,
        seed: int = 0,
        sabotages: Sequence[str] = (COMPACT_OFTEN,),
    ) -> None:
        self.chance = random.Random(seed)
        self.group = GroupHistory()
        self.settled_s: list[float] = []
        self.lives = 0
        self.output = ""
        self._records = History()
        self._data, self._sabotages = data, sabotages
        self._port = free_ports()
        self._partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        with self._start() as broker, RawClient(broker.bootstrap) as client:
            client.create_topic(TOPIC, PARTITION_COUNT)
            client.ask(FIND_COORDINATOR, messages.FindCoordinatorRequest(key=GROUP))  # makes the offsets topic
        self._gate = threading.Event()
        self._members = [self._new_member(f"member{number}") for number in range(STEADY_MEMBERS + RESTLESS_MEMBERS)]
        for member in self._members:
            stack.callback(member.close)

    def _new_member(self, name: str) -> Member:
        seed = self.chance.getrandbits(32)
        return Member(name, f"{HOST}:{self._port}", self._partitions, self.group, self._gate, seed=seed)

    def _start(self, point: CrashPoint | None = None) -> BrokerProcess:
        sabotages = list(self._sabotages)
        if point is not None and point.program is not None:
            sabotages.append(point.program[-1])
        program = [sys.executable, str(SABOTAGED_GROUPS), ",".join(sabotages)]
        tracer = point.tracer if point is not None else ()
        return SmallBroker(self._data, port=self._port, settings=SETTINGS, program=program, tracer=tracer)

    @property
    def anomalies(self) -> list[Anomaly]:
        return self.group.anomalies

    @property
    def summary(self) -> str:
        """For the reports of long runs."""
        settled = sorted(self.settled_s) or [0.0]
        return (
            f"{self.lives} lives, {len(self.group.generations)} generations, {self.group.acknowledged_count} commits "
            f"acknowledged, {self.group.refused_count} refused to fenced members, "
            f"settled after {settled[len(settled) // 2]:.2f} s (median), {settled[-1]:.2f} s (longest), 0 anomalies"
        )

    def live_and_die(self, point: CrashPoint) -> None:
        """One life, until so many commits are acknowledged or the crash point comes first."""
        self._live(point, lambda broker: self._load(broker, point))

    def live_to_the_end(self) -> None:
        """A last life without a fault: the group reads all there is (G4)."""
        self._live(None, self._catch_up)

    def _live(self, point: CrashPoint | None, live: Callable[[BrokerProcess], None]) -> None:
        self.lives += 1
        broker = self._start(point)
        try:
            broker.wait_ready()
            self._check_commits(broker)
            self._gate.set()
            self._settle(broker)
            if not self.anomalies:
                live(broker)
        except (BrokerDied, ConnectionError):
            assert broker.wait_exit() == -signal.SIGKILL, broker.output
        finally:
            self._gate.clear()
            for member in self._members:
                member.is_restless = False
            broker.kill()
        self.output += broker.output

    def _check_commits(self, broker: BrokerProcess) -> None:
        with RawClient(broker.bootstrap) as client:
            self.group.check_committed(committed_offsets(client, self._partitions), self.group.acknowledged())

    def _settle(self, broker: BrokerProcess) -> None:
        """Waits until every member has the same generation, and among them every partition (G5)."""
        started = time.monotonic()
        while not self._is_settled() and not self.anomalies:
            if not broker.is_running:
                raise ConnectionError
            if time.monotonic() - started > SETTLE_S_MAX:
                told = ", ".join(f"{member.confirmed}: {len(member.assignment)}" for member in self._members)
                self.anomalies.append(Anomaly("stuck group", self._partitions[0], -1, f"generations and shares {told}"))
                return
            time.sleep(POLL_S)
        self.settled_s.append(time.monotonic() - started)

    def _is_settled(self) -> bool:
        generations = {member.confirmed for member in self._members}
        owned = sorted(partition for member in self._members for partition in member.assignment)
        return len(generations) == 1 and None not in generations and owned == self._partitions

    def _load(self, broker: BrokerProcess, point: CrashPoint) -> None:
        """Produces, reads, commits and rebalances until so much is committed, and kills the broker."""
        producer = RawProducer(
            broker.bootstrap,
            self._records,
            self._partitions,
            ACKS_ALL,
            in_flight_max=1,
            seed=self.chance.getrandbits(32),
        )
        for member in self._members[STEADY_MEMBERS:]:
            member.is_restless = True
        producer.start()
        target, deadline = self.group.acknowledged_count + point.acknowledged, time.monotonic() + LOAD_S_MAX
        while self.group.acknowledged_count < target and time.monotonic() < deadline and broker.is_running:
            time.sleep(POLL_S)
        if point.pauses and broker.is_running:
            broker.pause()
        broker.kill()
        producer.join()

    def _catch_up(self, broker: BrokerProcess) -> None:
        with RawClient(broker.bootstrap) as client:
            ends = {partition: client.offset_of(partition, LATEST) for partition in self._partitions}
            deadline = time.monotonic() + CATCH_UP_S_MAX
            while (committed := committed_offsets(client, self._partitions)) != ends:
                if time.monotonic() > deadline or self.anomalies:
                    detail = f"the group has committed {list(committed.values())} of {list(ends.values())}"
                    self.anomalies.append(Anomaly("no progress", self._partitions[0], -1, detail))
                    return
                time.sleep(POLL_S)
            self.group.check_committed(committed, self.group.acknowledged())
