"""At most once: commit before the work. A worker that is killed in between loses work and repeats none.

The worker takes five records at a time, commits them and then processes them. In the middle of a batch it hangs, is
killed with SIGKILL and restarted: the new process continues after the batch, whose rest is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer

from examples.patterns import stage

RECORDS, BATCH = 20, 5
HANGS_AT = 12


@dataclass(frozen=True)
class Result:
    committed: int
    lost: list[int]
    repeated: list[int]


def serve(bootstrap: str, topic: str, hangs_at: int | None, done: Callable[[int], None]) -> None:
    """Run the worker until it is killed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.instance.id": "worker-1",  # restarted it is the same member: no wait for its old session to end
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **stage.QUICK,
        }
    )
    consumer.subscribe([topic])
    while True:
        batch = stage.take(consumer, BATCH)
        if batch:
            consumer.commit(asynchronous=False)  # before the work: every processed record is committed
        for message in batch:
            work(message.offset(), hangs_at, done)


def work(number: int, hangs_at: int | None, done: Callable[[int], None]) -> None:
    if number == hangs_at:
        threading.Event().wait()  # a call that never returns
    done(number)


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "at-most-once")
    stage.send(bootstrap, topic, range(RECORDS))

    with stage.worker(serve, bootstrap, topic, HANGS_AT) as first:
        first.wait_for(HANGS_AT - 1)
        before = first.kill()
    committed = stage.committed_offset(bootstrap, topic, topic)
    print(f"done {before[0]} to {before[-1]}, killed at work on {HANGS_AT}; the group goes on at offset {committed}")

    with stage.worker(serve, bootstrap, topic, None) as second:
        second.wait_for(RECORDS - 1)
        after = second.kill()
    lost = [number for number in range(RECORDS) if number not in before + after]
    repeated = [number for number in after if number in before]
    print(f"the next one did {after[0]} to {after[-1]}: repeated {repeated}, lost {lost}")
    return Result(committed, lost, repeated)


if __name__ == "__main__":
    stage.main(run)
