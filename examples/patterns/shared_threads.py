"""One partition, many threads, as a share group: the broker keeps track of what each thread has finished.

With a consumer group (`threads_one_partition`) the program itself must hold back its commits until all earlier records
are done, and a slow record holds them up. Here each record is accepted by itself: while one takes long, all others
finish.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import flowstone
from examples.patterns import stage

RECORDS, THREADS, SLOW_S = 40, 8, 1.0


@dataclass(frozen=True)
class Result:
    handled: list[int]
    others_s: float
    slow_s: float
    threads: int


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "jobs")
    stage.send(bootstrap, topic, range(RECORDS))
    finished: dict[int, float] = {}
    threads = set()
    begun_s: list[float] = []

    def work(task: flowstone.queues.task.Task) -> None:
        begun_s.append(time.monotonic())
        threads.add(threading.current_thread().name)
        number = int(task.value or b"")
        time.sleep(0.005 if number else SLOW_S)  # the first record takes long
        finished[number] = time.monotonic()

    with flowstone.Queue(
        topic, group=f"threads-of-{topic}", bootstrap=bootstrap, in_flight=2 * THREADS, idle_s=0.3
    ) as queue:
        queue.run(work, threads=THREADS)
    others_s = max(time_s for number, time_s in finished.items() if number) - min(begun_s)
    slow_s = finished[0] - min(begun_s)
    print(f"{RECORDS - 1} records were finished after {others_s:.2f} s, the slow one after {slow_s:.2f} s")
    print("a commit of a consumer group, in order, would have waited for the slow one")
    return Result(sorted(finished), others_s, slow_s, len(threads))


if __name__ == "__main__":
    stage.main(run)
