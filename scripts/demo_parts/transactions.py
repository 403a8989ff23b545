"""The transactions of the demo: a producer is killed in the middle of one, and the next with its id carries on.

The first producer is a process, `python -m scripts.demo_parts.transactions ADDRESS`. It prints the number of each
transaction that it has committed. In the middle of transaction STOPS_IN it prints that it is there, and waits to be
killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from scripts.demo_parts.broker import PARTITIONS, client_config

import flowstone

TOPIC = TRANSACTIONAL_ID = "payments"
TRANSACTIONS, RECORDS = 5, 1000
STOPS_IN = 3
HALFWAY = "halfway"
TIMEOUT_S = 60


class Outcome(NamedTuple):
    committed_before: int  # transactions of the killed producer
    written: int  # records in the log when it was killed
    seen: Counter[str]  # by a read_committed reader, after the kill
    takeover_s: float  # until the next producer may begin a transaction, with that of the killed one aborted
    seen_at_end: Counter[str]
    written_at_end: int


def run_transactions(address: str) -> Outcome:
    admin = AdminClient(client_config(address))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)
    with _start(address) as killed:
        try:
            lines = _lines_until(killed, HALFWAY)
        finally:
            killed.kill()  # SIGKILL
    seen, written = _read(address, read_committed=True), _read(address, read_committed=False)
    begun = time.perf_counter()
    producer = _new_producer(address)
    takeover_s = time.perf_counter() - begun
    for number in range(len(lines), TRANSACTIONS):
        _write(producer, number, RECORDS)
        producer.commit_transaction(TIMEOUT_S)
    at_end = _read(address, read_committed=True)
    deadline_s = time.monotonic() + TIMEOUT_S
    while at_end.total() < TRANSACTIONS * RECORDS and time.monotonic() < deadline_s:
        at_end = _read(address, read_committed=True)  # a commit is answered before all of it can be read
    return Outcome(len(lines), written.total(), seen, takeover_s, at_end, _read(address, read_committed=False).total())


def expected(transactions: int) -> Counter[str]:
    """Return the values of the first transactions, each once."""
    return Counter(_value(number, record) for number in range(transactions) for record in range(RECORDS))


def _start(address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.demo_parts.transactions", address],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def _lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    """Return the lines that the process prints before `last`."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        if line.strip() == last:
            return lines
        lines.append(line.strip())
    raise SystemExit("demo: the transactional producer ended too early; it says why above")


def _read(address: str, *, read_committed: bool) -> Counter[str]:
    table = flowstone.read(TOPIC, columns=["value"], read_committed=read_committed, bootstrap=address)
    return Counter(value.decode() for value in table["value"].to_pylist())


def _new_producer(address: str) -> Producer:
    producer = Producer({**client_config(address), "transactional.id": TRANSACTIONAL_ID})
    producer.init_transactions(TIMEOUT_S)
    return producer


def _write(producer: Producer, number: int, records: int) -> None:
    """Begin a transaction and store its first records, in all partitions."""
    producer.begin_transaction()
    for record in range(records):
        producer.produce(TOPIC, _value(number, record), partition=record % PARTITIONS)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError(f"not all records were stored in {TIMEOUT_S} s")


def _value(number: int, record: int) -> str:
    return f"transaction {number}, payment {record}"


def main() -> None:
    producer = _new_producer(sys.argv[1])
    for number in range(STOPS_IN):
        _write(producer, number, RECORDS)
        producer.commit_transaction(TIMEOUT_S)
        print(number, flush=True)
    _write(producer, STOPS_IN, RECORDS // 2)
    print(HALFWAY, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
