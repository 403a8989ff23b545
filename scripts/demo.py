"""The complete demonstration: `make demo`.

The demo starts a broker process and writes an hour of orders, clicks and readings with acks=all. It reads from an
offset and from a time, and runs a group of three that loses a member while it reads. A producer is killed in the middle
of a transaction, and the next one with its id carries on. Spark queries sum the orders by windows of event time into a
Parquet table and a topic. Finally the broker is killed with SIGKILL and restarted, and everything is counted and
compared. The exit status is 1 if a record is missing or changed, or a sum is wrong.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.demo_broker import PARTITIONS, BrokerProcess, client_config  # noqa: E402 - after the path is set
from scripts.demo_charts import print_revenue  # noqa: E402
from scripts.demo_events import (  # noqa: E402
    ROWS,
    SPAN_S,
    Sum,
    end_offsets,
    offsets_at,
    open_consumer,
    produce,
    read,
    read_everything,
)
from scripts.demo_group import MEMBERS, run_group  # noqa: E402
from scripts.demo_spark import RESULT_TOPIC, Outcome, run_queries  # noqa: E402
from scripts.demo_transactions import RECORDS, TRANSACTIONS, expected, run_transactions  # noqa: E402

# The past that is read again: its last quarter.
FROM_TIME_S = SPAN_S * 3 // 4


class Step(NamedTuple):
    name: str
    figure: str
    good: bool


class Demo:
    """The steps of the demo in order, and their results."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._start_ms = int(time.time() * 1000) - SPAN_S * 1000
        self.spark: Outcome | None = None

    def run(self) -> Iterator[Step]:
        data_directory = str(Path(self._directory, "data"))
        broker = BrokerProcess(data_directory, "127.0.0.1:0")
        try:
            yield Step("start `flowstone up`", f"ready in {broker.ready_s:.2f} s", True)
            admin = AdminClient(client_config(broker.address))
            for future in admin.create_topics(
                [NewTopic(each, PARTITIONS, 1) for each in (*ROWS, RESULT_TOPIC)]
            ).values():
                future.result()
            produced = produce(broker.address, self._start_ms)
            rate = f"{produced.sent.records / produced.took_s:,.0f} records/s made and stored"
            told = " + ".join(f"{rows:,} {topic}" for topic, rows in ROWS.items())
            yield Step(f"{told} in, acks=all", rate, produced.sent == produced.acknowledged)
            yield from self._read_the_past(broker)
            yield from self._read_as_group(broker)
            yield from self._transact(broker)
            yield from self._query(broker)
            broker.kill()
            yield Step("kill -9 the broker", "no warning given", True)
            broker = BrokerProcess(data_directory, broker.address)
            yield Step("start it again", f"ready in {broker.ready_s:.2f} s", True)
            found, took_s = read_everything(broker.address)
            yield Step(
                "read everything", f"{found.records / took_s:,.0f} records/s", found.records == sum(ROWS.values())
            )
            yield Step("the same as was acknowledged", str(found), found == produced.acknowledged)
            yield Step("stop", f"clean in {broker.stop():.2f} s", True)
        finally:
            broker.kill()

    def _read_the_past(self, broker: BrokerProcess) -> Iterator[Step]:
        """Read from an offset of one partition, and from a time in all partitions."""
        with open_consumer(broker.address) as consumer:
            end, found = end_offsets(consumer, "orders")[0], Sum()
            read(consumer, "orders", {0: end // 2}, found)
            good = found.records == end - end // 2
            yield Step(f"read partition 0 of orders from offset {end // 2:,}", f"{found.records:,} records", good)
        with open_consumer(broker.address) as consumer:
            time_ms, found = self._start_ms + FROM_TIME_S * 1000, Sum()
            times = read(consumer, "orders", offsets_at(consumer, "orders", time_ms), found)
            good = found.records == ROWS["orders"] // 4 and min(times) == time_ms
            yield Step(f"read orders from {_clock(time_ms)} on", f"{found.records:,} records", good)

    def _read_as_group(self, broker: BrokerProcess) -> Iterator[Step]:
        """Read with three members that share the partitions; kill one, and let the others take over."""
        with open_consumer(broker.address) as consumer:
            ends = end_offsets(consumer, "orders")
        outcome = run_group(broker.address, broker.http_address, "orders", ends)
        shares = " + ".join(map(str, reversed(outcome.shares)))
        yield Step(f"a group of {MEMBERS} reads", f"partitions shared out {shares}", len(outcome.shares) == MEMBERS)
        yield Step("kill -9 one of them", f"taken over in {outcome.takeover_s:.1f} s", bool(outcome.takeover_s))
        yield Step("the reason the broker gives", outcome.reason, bool(outcome.reason))
        yield Step("the lag of the group", _falling([*outcome.lags, 0]), bool(outcome.lags))
        told = f"{outcome.missing} missing, {outcome.repeated:,} read again after the kill"
        yield Step("what the group has read", told, outcome.missing == 0)

    def _transact(self, broker: BrokerProcess) -> Iterator[Step]:
        """Kill a transactional producer in the middle of a transaction; let the next one with its id carry on."""
        found = run_transactions(broker.address)
        half = found.written - found.committed_before * RECORDS
        told = f"{found.committed_before} committed, {half:,} records of the next one written"
        yield Step("kill -9 a producer in a transaction", told, 0 < half < RECORDS)
        told = f"{found.seen.total():,} records: the committed ones"
        yield Step("a read_committed reader sees", told, found.seen == expected(found.committed_before))
        told = f"carries on after {found.takeover_s:.2f} s, commits {TRANSACTIONS - found.committed_before}"
        yield Step("the next producer with its id", told, found.written_at_end == TRANSACTIONS * RECORDS + half)
        told = f"{found.seen_at_end.total():,} records, each once"
        yield Step("a read_committed reader sees now", told, found.seen_at_end == expected(TRANSACTIONS))

    def _query(self, broker: BrokerProcess) -> Iterator[Step]:
        """Run queries over windows of event time with a watermark; write closed ones to Parquet, changes to a topic."""
        found = self.spark = run_queries(broker.address, broker.http_address, self._directory, self._start_ms)
        took = f"session in {found.session_s:.1f} s, both done in {found.queries_s:.1f} s"
        yield Step("two Spark queries sum orders up by 5 minutes", took, True)
        for name, lags in (("Parquet", found.table_lags), ("topic", found.topic_lags)):
            yield Step(f"the lag of the query to {name}, as a group", _falling(lags), lags[-1:] == [0])
        yield Step("the table", f"{len(found.table)} closed windows, compared with Python's sums", found.table_is_right)
        yield Step(
            "the topic", f"{len(found.topic)} windows, compared with Python's sums", found.topic == found.expected
        )


def _falling(lags: Sequence[int]) -> str:
    """Return the first, the last and a few values in between."""
    shown = [lags[len(lags) * part // 4] for part in range(4)] if len(lags) > 4 else lags[:-1]
    return " → ".join(f"{lag:,}" for lag in (*shown, *lags[-1:]))


def _clock(time_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ms / 1000)) + f".{time_ms % 1000:03d}"


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Flowstone: events in, through a group, through Spark, and through kills", title_justify="left")
    for name in ("step", "figure", "good"):
        table.add_column(name)
    all_good = True
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowstone-demo-") as directory:
        demo = Demo(directory)
        for step in demo.run():
            if console.is_terminal:  # somebody waits
                console.print(f"[dim]{step.name}: {step.figure}[/dim]", highlight=False)
            table.add_row(step.name, step.figure, "yes" if step.good else "NO", style=None if step.good else "bold red")
            all_good = all_good and step.good
    console.print(table)
    if demo.spark is not None:
        print_revenue(console, demo.spark)
    outcome = "everything is there" if all_good else "SOMETHING IS MISSING"
    console.print(f"{outcome}; {time.perf_counter() - begun:.1f} s in all")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
