"""Speed of `flowstone.read` by isolation level: `python -m bench.micro.read_committed`.

Three topics with the same records, which producers sent in batches of 100: without transactions, in transactions of 100
records, and the same with every fourth transaction aborted. Rates are offsets with a record per second of the reader's
CPU time, the best of several rounds, in which the isolation levels take turns. The broker is a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Producer

import flowstone

TRANSACTIONS = 4000
RECORDS = 100  # of a transaction, and of a batch
VALUE = bytes(100)
ROUNDS = 15
TIMEOUT_S = 30
COLUMNS = ("offset", "value")


def main() -> None:
    print(f"{'M records/s on one core':<44}{'uncommitted':>13}{'committed':>11}{'ratio':>7}")
    with flowstone.Broker(mode="process") as broker:
        for topic, fill in (("plain", fill_plain), ("transactions", fill_transactions), ("aborts", fill_with_aborts)):
            broker.create_topic(topic, partitions=1)
            fill(broker.bootstrap, topic)
            uncommitted, committed = (rate / 1e6 for rate in rates(broker.bootstrap, topic))
            print(f"{topic:<44}{uncommitted:>13.1f}{committed:>11.1f}{uncommitted / committed:>7.2f}", flush=True)


def rates(bootstrap: str, topic: str) -> tuple[float, float]:
    """Return the best rates with read_uncommitted and read_committed."""
    best = {False: 0.0, True: 0.0}
    for number in range(ROUNDS):
        for committed in (False, True) if number % 2 else (True, False):
            start = time.process_time()
            reader = flowstone.read_batches(topic, columns=COLUMNS, read_committed=committed, bootstrap=bootstrap)
            for _ in reader:
                pass
            rate = TRANSACTIONS * RECORDS / (time.process_time() - start)
            best[committed] = max(best[committed], rate)
    return best[False], best[True]


def fill_plain(bootstrap: str, topic: str) -> None:
    producer = Producer(_config(bootstrap))
    for _ in range(TRANSACTIONS):
        _send_batch(producer, topic)


def fill_transactions(bootstrap: str, topic: str) -> None:
    _transact(bootstrap, topic, lambda number: True)


def fill_with_aborts(bootstrap: str, topic: str) -> None:
    _transact(bootstrap, topic, lambda number: number % 4 > 0)


def _transact(bootstrap: str, topic: str, is_committed: Callable[[int], bool]) -> None:
    producer = Producer({**_config(bootstrap), "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        _send_batch(producer, topic)
        if is_committed(number):
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def _send_batch(producer: Producer, topic: str) -> None:
    for _ in range(RECORDS):
        producer.produce(topic, VALUE)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError(f"not all records were stored in {TIMEOUT_S} s")


def _config(bootstrap: str) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.num.messages": RECORDS, "log_level": 0}


if __name__ == "__main__":
    main()
