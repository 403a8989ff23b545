"""One partition processed by several threads, with commits only up to the first unfinished record.

Threads finish out of order, and a committed offset means that everything before it is done. The slowest record
therefore delays the commit, but not the work. In this example one record hangs while later ones are processed. The
process is killed with SIGKILL and restarted: it continues at that record, and nothing is skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from examples.patterns import stage

RECORDS = 20
THREADS = 4
AHEAD_MAX = 8  # how far work may run ahead of the first unfinished record: so much is repeated at most
HANGS_AT = 5
POLL_S = 0.05

Tell = Callable[[tuple[str, int]], None]


@dataclass(frozen=True)
class Result:
    committed: int
    skipped: list[int]
    repeated: list[int]


def serve(bootstrap: str, topic: str, hangs_at: int | None, tell: Tell) -> None:
    """Run the worker until it is killed."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "group.instance.id": "worker-1",  # restarted it is the same member: no wait for its old session to end
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    unfinished: dict[Future[None], int] = {}
    read_to = committed = 0

    def commit_finished() -> None:
        nonlocal committed
        for each in [each for each in unfinished if each.done()]:
            each.result()  # raises if the work failed: the worker ends, and the record is not committed
            tell(("done", unfinished.pop(each)))
        first_unfinished = min(unfinished.values(), default=read_to)
        if first_unfinished > committed:
            consumer.commit(offsets=[TopicPartition(topic, 0, first_unfinished)], asynchronous=False)
            committed = first_unfinished
            tell(("committed", committed))

    def finish_all(*_: object) -> None:
        """Finish and commit running work before the partition is assigned to another member."""
        wait(unfinished)
        commit_finished()

    with ThreadPoolExecutor(THREADS) as threads, Consumer(config) as consumer:
        consumer.subscribe([topic], on_revoke=finish_all)
        while True:
            if read_to - committed < AHEAD_MAX:
                for message in stage.take(consumer, timeout_s=POLL_S):
                    unfinished[threads.submit(work, message.offset(), hangs_at)] = message.offset()
                    read_to = message.offset() + 1
            else:
                wait(unfinished, POLL_S, FIRST_COMPLETED)
            commit_finished()


def work(number: int, hangs_at: int | None) -> None:
    if number == hangs_at:
        threading.Event().wait()  # a call that never returns


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "threads")
    stage.send(bootstrap, topic, range(RECORDS))

    with stage.worker(serve, bootstrap, topic, HANGS_AT) as first:
        for number in range(HANGS_AT + AHEAD_MAX):
            first.wait_for(("done", number) if number != HANGS_AT else ("committed", HANGS_AT))
        before = [number for word, number in first.kill() if word == "done"]
    committed = stage.committed_offset(bootstrap, topic, topic)
    print(f"killed while {HANGS_AT} hangs, {max(before)} is done; the group goes on at offset {committed}")

    with stage.worker(serve, bootstrap, topic, None) as second:
        second.wait_for(("committed", RECORDS))
        after = [number for word, number in second.kill() if word == "done"]
    skipped = [number for number in range(RECORDS) if number not in before + after]
    repeated = sorted(number for number in after if number in before)
    print(f"the next one did {min(after)} to {max(after)}: repeated {repeated}, skipped {skipped}")
    return Result(committed, skipped, repeated)


if __name__ == "__main__":
    stage.main(run)
