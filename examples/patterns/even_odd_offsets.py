"""One partition, two workers: one handles the records with even offsets, the other those with odd ones.

Each reads the whole partition with its own group and skips the other's records. Neither is a group member: there is no
rebalance and no failover. One worker is stopped halfway and restarted, which does not affect the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from examples.patterns import stage

RECORDS = 20
HALVES = {"even": 0, "odd": 1}


@dataclass(frozen=True)
class Result:
    even: list[int]
    odd_before: list[int]
    odd_after: list[int]


def work(bootstrap: str, topic: str, half: str, last: int) -> list[int]:
    """Process one half from the last commit to the offset `last`; return the offsets that were processed."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{half}-of-{topic}",  # a group per worker, because each has its own position
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    handled: list[int] = []
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])  # continues at the offset that the group has committed
        at = -1
        while at < last:
            for message in stage.take(consumer):
                at = message.offset()
                if at % len(HALVES) == HALVES[half]:
                    handled.append(int(message.value()))  # the work
                consumer.commit(message=message, asynchronous=False)  # also for records of the other worker
    print(f"{half:4} handled {', '.join(map(str, handled))}")
    return handled


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "numbers")
    stage.send(bootstrap, topic, range(RECORDS))
    odd_before = work(bootstrap, topic, "odd", RECORDS // 2 - 1)
    even = work(bootstrap, topic, "even", RECORDS - 1)
    odd_after = work(bootstrap, topic, "odd", RECORDS - 1)
    return Result(even, odd_before, odd_after)


if __name__ == "__main__":
    stage.main(run)
