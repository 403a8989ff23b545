"""Dedupe: at least once without duplicate effects. A payment's id is stored in the same transaction as its effect.

A record may arrive twice: the worker failed after the work and before the commit, or the producer's program sent it
again. The id detects this: an id in the table has been processed. In this example a worker is killed with SIGKILL
exactly between work and commit, and one payment is in the topic twice; the balance is still correct.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer

from examples.patterns import stage

PAYMENTS = [{"id": f"payment-{number}", "cents": 100 + number} for number in range(10)]
SENT = [*PAYMENTS, PAYMENTS[3]]  # its sender saw no answer, and sent it again
HANGS_AFTER = 6

Tell = Callable[[tuple[int, bool]], None]


@dataclass(frozen=True)
class Result:
    balance: int
    passed_over: list[int]


def serve(bootstrap: str, topic: str, database: str, hangs_after: int | None, tell: Tell) -> None:
    """Run the worker until it is killed."""
    ledger = sqlite3.connect(database)
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": topic,
        "group.instance.id": "worker-1",  # restarted it is the same member: no wait for its old session to end
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    while True:
        for message in stage.take(consumer):
            is_new = pay(ledger, **json.loads(message.value()))
            tell((message.offset(), is_new))
            if message.offset() == hangs_after:
                threading.Event().wait()  # done in the database, unknown to the broker
            consumer.commit(message=message, asynchronous=False)


def pay(ledger: sqlite3.Connection, id: str, cents: int) -> bool:
    """Store the payment; return False if its id was already stored."""
    with ledger:  # one transaction: the id and the effect, or neither
        is_new = ledger.execute("INSERT OR IGNORE INTO done VALUES (?)", (id,)).rowcount == 1
        if is_new:
            ledger.execute("UPDATE account SET cents = cents + ?", (cents,))
    return is_new


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "payments")
    stage.send(bootstrap, topic, map(json.dumps, SENT))
    with tempfile.TemporaryDirectory() as directory:
        database = str(Path(directory) / "ledger.db")
        with closing(sqlite3.connect(database)) as ledger, ledger:
            ledger.execute("CREATE TABLE done (id TEXT PRIMARY KEY)")
            ledger.execute("CREATE TABLE account (cents INTEGER)")
            ledger.execute("INSERT INTO account VALUES (0)")

        with stage.worker(serve, bootstrap, topic, database, HANGS_AFTER) as first:
            first.wait_for((HANGS_AFTER, True))
        print(f"killed after the work on {HANGS_AFTER} and before its commit")
        with stage.worker(serve, bootstrap, topic, database, None) as second:
            second.wait_for((len(SENT) - 1, False))
            passed_over = [offset for offset, is_new in second.kill() if not is_new]

        with closing(sqlite3.connect(database)) as ledger:
            (balance,) = ledger.execute("SELECT cents FROM account").fetchone()
    print(f"the next one passed over the records {passed_over}; the balance is {balance} cents")
    return Result(balance, passed_over)


if __name__ == "__main__":
    stage.main(run)
