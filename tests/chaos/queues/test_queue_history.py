"""What the history of share groups in a chaos run holds against the brokers, and what it excuses."""

from __future__ import annotations

from flowstone.types import TopicPartition
from tests.chaos.queues.members import ChaosHistory
from tests.sim.queues.history import Delivered, Group, StoredTasks

PARTITION = TopicPartition("tasks", 0)
KEYED = Group("keyed", True, 10, 0.0)


class Told:
    """A history, told of one event per second."""

    def __init__(self) -> None:
        self.history = ChaosHistory()
        self.now_s = 0.0

    def deliver(self, offset: int, count: int = 1, key: bytes = b"k") -> None:
        self.now_s += 1
        self.history.deliver(KEYED, PARTITION, offset, Delivered(key, count), self.now_s - 0.5, self.now_s)

    def acknowledge(self, offset: int, kind: str, count: int = 1, *, is_answered: bool = True) -> None:
        self.now_s += 1
        self.history.ask(KEYED, PARTITION, offset, kind)
        if is_answered:
            times_s = self.now_s - 0.5, self.now_s
            self.history.acknowledged(KEYED, PARTITION, offset, kind, count, times_s, is_timed=False)

    def found(self) -> list[str]:
        return [anomaly.kind for anomaly in self.history.anomalies]


def test_a_record_that_is_delivered_after_its_acceptance_was_answered_is_found() -> None:
    for kind in ("accept", "reject"):
        told = Told()
        told.deliver(3)
        told.acknowledge(3, kind)
        told.deliver(3, 2)
        assert told.found() == ["finished and delivered"]


def test_a_record_whose_acceptance_was_not_answered_may_come_again() -> None:
    told = Told()
    told.deliver(3)
    told.acknowledge(3, "accept", is_answered=False)
    told.deliver(3, 2)
    assert told.found() == []


def test_a_record_before_an_unfinished_one_of_its_key_is_found_however_many_fetches_were_unanswered_before() -> None:
    told = Told()
    for _ in range(50):
        told.history.unanswered(KEYED, PARTITION)
    told.deliver(3)
    told.deliver(4, key=b"another")
    told.deliver(5)
    assert told.found() == ["I3 key order"]


def test_unanswered_fetches_since_its_last_delivery_may_have_given_a_record_up() -> None:
    told = Told()
    told.deliver(3, 8)
    for _ in range(2):
        told.history.unanswered(KEYED, PARTITION)
    told.deliver(5)
    assert told.found() == []


def test_too_many_deliveries_and_lost_records_are_found() -> None:
    told = Told()
    told.deliver(3, 11)
    told.history.check([KEYED], {PARTITION: StoredTasks(frozenset({3, 4}), frozenset())}, [])
    assert told.found() == ["I5 delivery count", "I8 lost", "I8 lost"]
