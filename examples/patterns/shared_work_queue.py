"""A work queue as a share group: many workers on one partition, each task done by one of them.

The same tasks are first done by a consumer group, in which a partition has one consumer however many members there are,
and then by a share group, whose members share the partition record by record.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass

from confluent_kafka import Consumer

import flowstone
from examples.patterns import stage

TASKS, TASK_S, WORKERS = 80, 0.01, 8


@dataclass(frozen=True)
class Result:
    done: Counter[bytes]
    by_worker: Counter[str]
    group_s: float
    shared_s: float


def as_consumer_group(bootstrap: str, topic: str) -> float:
    """Do all tasks as the only busy member of a consumer group; return how long that takes."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"group-of-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    done, begun_s = 0, 0.0
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        while done < TASKS:
            for message in stage.take(consumer):
                begun_s = begun_s or time.monotonic()
                time.sleep(TASK_S)  # the work
                done += 1
                consumer.commit(message=message, asynchronous=True)
        return time.monotonic() - begun_s


def as_share_group(bootstrap: str, topic: str) -> tuple[Counter[bytes], Counter[str], float]:
    """Do all tasks with eight workers; return which were done, by whom, and how long that takes."""
    done: Counter[bytes] = Counter()
    by_worker: Counter[str] = Counter()
    times: list[float] = []

    def work(task: flowstone.queues.task.Task) -> None:
        times.append(time.monotonic())
        time.sleep(TASK_S)  # the work
        done[task.value or b""] += 1
        by_worker[threading.current_thread().name] += 1
        times.append(time.monotonic())

    with flowstone.Queue(
        topic, group=f"workers-of-{topic}", bootstrap=bootstrap, in_flight=2 * WORKERS, idle_s=0.3
    ) as queue:
        queue.run(work, threads=WORKERS)
    return done, by_worker, max(times) - min(times)


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "tasks")
    stage.send(bootstrap, topic, range(TASKS))
    group_s = as_consumer_group(bootstrap, topic)
    done, by_worker, shared_s = as_share_group(bootstrap, topic)
    print(f"{TASKS} tasks of {TASK_S * 1000:g} ms in one partition, {WORKERS} workers")
    print(f"consumer group: {group_s:.2f} s, share group: {shared_s:.2f} s, {group_s / shared_s:.1f} times as fast")
    return Result(done, by_worker, group_s, shared_s)


if __name__ == "__main__":
    stage.main(run)
