"""Three libraries in one group, each member in a process of its own and killed in turn while records keep coming."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import confluent_kafka as ck
import pytest

from flowstone.embedded import Broker
from tests.clients.committing_member import LIBRARIES, POLL_S
from tests.clients.confluent_driver import ConfluentDriver

PARTITIONS = 6
GROUP = "mixed"
TOPIC = "orders"
WAIT_S = 30
PRODUCE_EVERY_S = 0.002
ROOT = Path(__file__).parents[2]

Read = set[tuple[int, int]]


class Member:
    """A process, and what it has said; `changed` is shared by all of them."""

    def __init__(self, library: str, bootstrap: str, changed: threading.Condition, read: Read) -> None:
        command = [sys.executable, "-m", "tests.clients.committing_member", library, bootstrap, GROUP, TOPIC]
        self.assignment: list[int] = []
        self._changed, self._read = changed, read
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # killed as it spoke
            told = json.loads(line)
            with self._changed:
                self.assignment = told["assignment"]
                self._read.update(map(tuple, told["read"]))
                self._changed.notify_all()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class MixedGroup:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._changed = threading.Condition()
        self.read: Read = set()
        self._members: dict[str, Member] = {}

    def start(self, library: str) -> None:
        self._members[library] = Member(library, self._bootstrap, self._changed, self.read)

    def kill(self, library: str) -> None:
        self._members.pop(library).kill()

    def close(self) -> None:
        for library in list(self._members):
            self.kill(library)

    def wait_shared(self) -> None:
        """Every partition has one owner, and every member as many as the others."""
        share = PARTITIONS // len(self._members)
        self._wait(
            lambda: (
                [len(member.assignment) for member in self._members.values()] == [share] * len(self._members)
                and self._owned() == list(range(PARTITIONS))
            )
        )

    def wait_read(self, sent: Read) -> None:
        self._wait(lambda: sent <= self.read)

    def _owned(self) -> list[int]:
        return sorted(partition for member in self._members.values() for partition in member.assignment)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            done = self._changed.wait_for(condition, WAIT_S)
        assert done, {library: member.assignment for library, member in self._members.items()}


@contextmanager
def produced(bootstrap: str) -> Iterator[Read]:
    """Records to every partition in turn for as long as the block runs; after it, all that were acknowledged."""
    sent: Read = set()
    producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    ending = threading.Event()

    def note(error: ck.KafkaError | None, message: ck.Message) -> None:
        assert error is None
        sent.add((message.partition(), message.offset()))

    def run() -> None:
        number = 0
        while not ending.wait(PRODUCE_EVERY_S):
            producer.produce(TOPIC, b"v", partition=number % PARTITIONS, on_delivery=note)
            producer.poll(0)
            number += 1
        producer.flush(WAIT_S)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        ending.set()
        thread.join()


@pytest.mark.timeout(120)
def test_members_of_three_libraries_take_over_from_each_other_when_killed_and_lose_nothing() -> None:
    settings = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "500"}
    with Broker(settings=settings) as broker, ExitStack() as stack:
        ConfluentDriver(broker.bootstrap).create_topic(TOPIC, PARTITIONS)
        group = MixedGroup(broker.bootstrap)
        stack.callback(group.close)
        with produced(broker.bootstrap) as sent:
            for library in LIBRARIES:
                group.start(library)
            group.wait_shared()
            for library in LIBRARIES:
                group.kill(library)
                group.wait_shared()
                group.start(library)
                group.wait_shared()
        group.wait_read(sent)
        wait_committed(broker.bootstrap, sent)


def wait_committed(bootstrap: str, sent: Read) -> None:
    """The group has committed exactly what there is: the commits of those who took over came last."""
    ends = {partition: offset + 1 for partition, offset in sorted(sent)}
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    asked = [ck.TopicPartition(TOPIC, partition) for partition in ends]
    committed: dict[int, int] = {}
    for _ in range(int(WAIT_S / POLL_S)):
        committed = {each.partition: each.offset for each in consumer.committed(asked, timeout=WAIT_S)}
        if committed == ends:
            break
        consumer.poll(POLL_S)
    consumer.close()
    assert committed == ends
