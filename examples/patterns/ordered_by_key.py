"""Ordered processing by key: all records of a key are in one partition, which has one reader at a time.

Events of five accounts are written in rotation. Two workers share the partitions, and each account's events arrive at
one of them in the order in which they were written.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from queue import Queue

from confluent_kafka import Consumer, Producer

from examples.patterns import stage

PARTITIONS = 4
ACCOUNTS = ("ada", "bob", "eve", "joe", "kim")
EVENTS = 8
POLL_S = 0.1


@dataclass(frozen=True)
class Result:
    events: dict[str, list[int]]
    workers: dict[str, set[str]]


def produce_events(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,  # otherwise a retry may be stored after later records
            "partitioner": "murmur2_random",  # a key's partition is the one that the Java client chooses
        }
    )
    for number in range(EVENTS):
        for account in ACCOUNTS:
            producer.produce(topic, str(number), key=account)
    producer.flush(stage.TIMEOUT_S)


class Worker(threading.Thread):
    def __init__(self, bootstrap: str, topic: str, name: str, done: Queue[tuple[str, str, int]]) -> None:
        super().__init__(name=name, daemon=True)
        self._broker, self._topic, self._done = bootstrap, topic, done
        self.has_partitions, self.goes_home = threading.Event(), threading.Event()

    def run(self) -> None:
        config = {
            "bootstrap.servers": self._broker,
            "group.id": group_of(self._topic),
            "enable.auto.commit": False,
            **stage.QUICK,
        }
        with Consumer(config) as consumer:
            consumer.subscribe([self._topic], on_assign=lambda *_: self.has_partitions.set())
            while not self.goes_home.is_set():
                for message in stage.take(consumer, timeout_s=POLL_S):
                    self._done.put((self.name, message.key().decode(), int(message.value())))  # one after the other
                    consumer.commit(message=message, asynchronous=False)


def group_of(topic: str) -> str:
    return f"workers-of-{topic}"


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "events", partitions=PARTITIONS)
    stage.start_group(bootstrap, group_of(topic), topic, partitions=PARTITIONS)
    done: Queue[tuple[str, str, int]] = Queue()
    workers = [Worker(bootstrap, topic, name, done) for name in ("first", "second")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.has_partitions.wait(stage.TIMEOUT_S)

    produce_events(bootstrap, topic)
    events, seen_by = defaultdict(list), defaultdict(set)
    for _ in range(EVENTS * len(ACCOUNTS)):
        name, account, number = done.get(timeout=stage.TIMEOUT_S)
        events[account].append(number)
        seen_by[account].add(name)
    for worker in workers:
        worker.goes_home.set()
        worker.join()
    for account in ACCOUNTS:
        print(f"{account}: {events[account]} by the {' and the '.join(seen_by[account])} worker")
    return Result(events, seen_by)


if __name__ == "__main__":
    stage.main(run)
