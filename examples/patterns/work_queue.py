"""A work queue: the members of one group share the tasks, and each task is assigned to one of them.

Three workers share a topic of four partitions. Then one leaves, and the other two take over its partitions.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from queue import Queue

from confluent_kafka import Consumer

from examples.patterns import stage

PARTITIONS = 4  # as many workers as this can be busy at once
TASKS = 24
POLL_S = 0.1


@dataclass(frozen=True)
class Result:
    done: Counter[str]
    by_all: Counter[str]
    by_those_who_stayed: Counter[str]


class Worker(threading.Thread):
    def __init__(self, bootstrap: str, topic: str, name: str, done: Queue[tuple[str, str]]) -> None:
        super().__init__(name=name, daemon=True)
        self._broker, self._topic, self._done = bootstrap, topic, done
        self.has_partitions, self.goes_home = threading.Event(), threading.Event()

    def run(self) -> None:
        config = {
            "bootstrap.servers": self._broker,
            "group.id": group_of(self._topic),  # the same for all: that makes it a queue
            "enable.auto.commit": False,
            **stage.QUICK,
        }
        with Consumer(config) as consumer:  # closing it leaves the group: the others take over at once
            consumer.subscribe([self._topic], on_assign=lambda *_: self.has_partitions.set())
            while not self.goes_home.is_set():
                for message in stage.take(consumer, timeout_s=POLL_S):
                    self._done.put((self.name, message.value().decode()))  # the work
                    consumer.commit(message=message, asynchronous=False)


def group_of(topic: str) -> str:
    return f"workers-of-{topic}"


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "tasks", partitions=PARTITIONS)
    stage.start_group(bootstrap, group_of(topic), topic, partitions=PARTITIONS)
    done: Queue[tuple[str, str]] = Queue()
    workers = [Worker(bootstrap, topic, name, done) for name in ("ada", "bob", "eve")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.has_partitions.wait(stage.TIMEOUT_S)

    stage.send(bootstrap, topic, range(TASKS), partitions=PARTITIONS)
    first = [done.get(timeout=stage.TIMEOUT_S) for _ in range(TASKS)]
    by_all = Counter(name for name, _task in first)
    print(f"three workers: {share(by_all)}")

    leaver = workers.pop()
    leaver.goes_home.set()
    leaver.join()
    stage.send(bootstrap, topic, range(TASKS, 2 * TASKS), partitions=PARTITIONS)
    second = [done.get(timeout=stage.TIMEOUT_S) for _ in range(TASKS)]
    by_those_who_stayed = Counter(name for name, _task in second)
    print(f"{leaver.name} went home: {share(by_those_who_stayed)}")

    for worker in workers:
        worker.goes_home.set()
        worker.join()
    return Result(Counter(task for _name, task in first + second), by_all, by_those_who_stayed)


def share(counts: Counter[str]) -> str:
    return ", ".join(f"{name} did {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    stage.main(run)
