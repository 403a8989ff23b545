"""One partition, two workers, as a share group: no half belongs to anyone, and no record is read twice.

In the version with consumer groups (`even_odd_offsets`) each worker reads the whole partition and skips half of it.
Here the workers share one group. One stops halfway; the other does the rest, which is not possible there.
"""

from __future__ import annotations

from dataclasses import dataclass

import flowstone
from examples.patterns import stage

RECORDS = 20


@dataclass(frozen=True)
class Result:
    first: list[int]
    second: list[int]


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "numbers")
    stage.send(bootstrap, topic, range(RECORDS))
    handled: dict[str, list[int]] = {"first": [], "second": []}

    def queue(in_flight: int) -> flowstone.Queue:
        return flowstone.Queue(topic, group=f"both-of-{topic}", bootstrap=bootstrap, in_flight=in_flight, idle_s=0.3)

    with queue(2) as first, queue(2) as second:
        workers = {"first": iter(first), "second": iter(second)}
        for turn in range(RECORDS // 2):
            name = ("first", "second")[turn % 2]
            with next(workers[name]) as task:
                handled[name].append(int(task.value or b""))  # the work
        first.close()  # releases the records that it has fetched and not processed
        for task in workers["second"]:
            with task:
                handled["second"].append(int(task.value or b""))
    done = sum(map(len, handled.values()))
    for name, numbers in handled.items():
        print(f"{name:6} handled {', '.join(map(str, sorted(numbers)))}")
    print(f"{done} of {RECORDS} records were handled, none twice; a consumer group for each half reads {2 * RECORDS}")
    return Result(handled["first"], handled["second"])


if __name__ == "__main__":
    stage.main(run)
