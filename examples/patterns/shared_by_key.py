"""In order by key, as a share group with `share.ordering=key`: many workers on one partition, and no key is overtaken.

At most one record of a key is in work at a time, and its records come in the order of their offsets, also after a
failure. Other keys are not held up. With a consumer group (`ordered_by_key`) a key's order costs the parallelism of its
partition.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass

from confluent_kafka import Producer

import flowstone
from examples.patterns import stage

KEYS, PER_KEY, TASK_S, WORKERS = 16, 6, 0.01, 8


@dataclass(frozen=True)
class Result:
    by_key: dict[str, list[int]]
    most_at_once: int
    serial_s: float
    shared_s: float


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "orders")
    values = [f"{key}:{number}" for number in range(PER_KEY) for key in range(KEYS)]
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key=value.partition(":")[0])
    producer.flush(stage.TIMEOUT_S)
    group = f"workers-of-{topic}"
    order_by_key(bootstrap, group)
    by_key: dict[str, list[int]] = {str(key): [] for key in range(KEYS)}
    in_work: set[str] = set()
    most_at_once = 0
    times: list[float] = []

    def work(task: flowstone.queues.task.Task) -> None:
        nonlocal most_at_once
        key, _, number = (task.value or b"").decode().partition(":")
        assert key not in in_work, "a key is in work once"
        in_work.add(key)
        most_at_once = max(most_at_once, len(in_work))
        times.append(time.monotonic())
        time.sleep(TASK_S)  # the work
        in_work.discard(key)
        if (key, number, task.attempt) == ("3", "2", 1):
            raise ValueError("a failure: the key waits for its next attempt, the others go on")
        by_key[key].append(int(number))
        times.append(time.monotonic())

    with flowstone.Queue(topic, group=group, bootstrap=bootstrap, in_flight=2 * WORKERS, idle_s=0.3) as queue:
        queue.run(work, threads=WORKERS)
    serial_s, shared_s = len(values) * TASK_S, max(times) - min(times)
    print(f"{len(values)} records of {KEYS} keys in one partition, {TASK_S * 1000:g} ms each, {WORKERS} workers")
    print(f"one consumer: {serial_s:.2f} s, share group ordered by key: {shared_s:.2f} s, up to {most_at_once} at once")
    return Result(by_key, most_at_once, serial_s, shared_s)


def order_by_key(bootstrap: str, group: str) -> None:
    """Switch the group to deliveries in order by key, before it has members."""
    command = ["share", "alter", group, "--set", "share.ordering=key", "--bootstrap", bootstrap]
    subprocess.run([sys.executable, "-m", "flowstone.cli", *command], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    stage.main(run)
