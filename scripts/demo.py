"""The complete demonstration: `make demo`.

The demo starts a broker process and writes an hour of orders, clicks and readings with acks=all. It reads from an
offset and from a time, and runs a group of three that loses a member while it reads. A producer is killed in the middle
of a transaction, and the next one with its id carries on. A pipeline on Spark writes the orders to a topic and a Delta
table; its driver and the broker are killed with SIGKILL halfway and restarted. Its dead letters are retried after a fix
that `flowstone pipeline diff` has compared. Finally the broker is killed once more, and everything is read again. The
exit status is 1 if a record is missing, changed or there twice, or a figure differs from what Python computes.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.demo_parts.broker import PARTITIONS, BrokerProcess, client_config  # noqa: E402 - after the path is set
from scripts.demo_parts.charts import print_revenue  # noqa: E402
from scripts.demo_parts.events import (  # noqa: E402
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
from scripts.demo_parts.group import MEMBERS, run_group  # noqa: E402
from scripts.demo_parts.pipeline import BROKEN, Row, break_orders  # noqa: E402
from scripts.demo_parts.pipeline_steps import PipelineSteps  # noqa: E402
from scripts.demo_parts.step import Step  # noqa: E402
from scripts.demo_parts.transactions import RECORDS, TRANSACTIONS, expected, run_transactions  # noqa: E402

# The past that is read again: its last quarter.
FROM_TIME_S = SPAN_S * 3 // 4
TIMEOUT_S = 60


class Demo:
    """The steps of the demo in order, and their results."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._start_ms = int(time.time() * 1000) - SPAN_S * 1000
        self.sales = self.retried = Counter[Row]()  # in the table in the end, and those of them that were dead letters

    def run(self) -> Iterator[Step]:
        self._broker = self._start_broker("127.0.0.1:0")
        try:
            yield Step("start `flowstone up`", f"ready in {self._broker.ready_s:.2f} s", True)
            admin = AdminClient(client_config(self._broker.address))
            for future in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in ROWS]).values():
                future.result(TIMEOUT_S)
            produced = produce(self._broker.address, self._start_ms)
            rate = f"{produced.sent.records / produced.took_s:,.0f} records/s made and stored"
            told = " + ".join(f"{rows:,} {topic}" for topic, rows in ROWS.items())
            yield Step(f"{told} in, acks=all", rate, produced.sent == produced.acknowledged)
            yield from self._read_the_past(self._broker)
            yield from self._read_as_group(self._broker)
            yield from self._transact(self._broker)
            break_orders(self._broker.address, produced.acknowledged)
            yield from self._run_pipeline()
            self._restart_broker()
            yield Step("kill -9 the broker, and start it again", f"ready again in {self._broker.ready_s:.2f} s", True)
            found, took_s = read_everything(self._broker.address)
            good = found.records == sum(ROWS.values()) + len(BROKEN)
            yield Step("read everything", f"{found.records / took_s:,.0f} records/s", good)
            yield Step("the same as was acknowledged", str(found), found == produced.acknowledged)
            yield Step("stop", f"clean in {self._broker.stop():.2f} s", True)
        finally:
            self._broker.kill()

    def _start_broker(self, address: str) -> BrokerProcess:
        return BrokerProcess(str(Path(self._directory, "data")), address)

    def _restart_broker(self) -> BrokerProcess:
        """Kill the broker with SIGKILL, and start it again with its data and address."""
        self._broker.kill()
        self._broker = self._start_broker(self._broker.address)
        return self._broker

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

    def _run_pipeline(self) -> Iterator[Step]:
        """Run a pipeline through kills, compare it with its fixed version, and retry its dead letters."""
        steps = PipelineSteps(self._directory, self._start_ms, self._broker)
        yield from steps.run(self._restart_broker)
        if steps.written is not None:
            self.sales, self.retried = steps.written.table, steps.retried


def _falling(lags: Sequence[int]) -> str:
    """Return the first, the last and a few values in between."""
    shown = [lags[len(lags) * part // 4] for part in range(4)] if len(lags) > 4 else lags[:-1]
    return " → ".join(f"{lag:,}" for lag in (*shown, *lags[-1:]))


def _clock(time_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ms / 1000)) + f".{time_ms % 1000:03d}"


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit("demo: stopped")  # as Ctrl-C does: through all `finally`


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title="Flowstone: events in, through a group, a pipeline, and kills", title_justify="left")
    for name in ("step", "figure", "good"):
        table.add_column(name)
    table.add_column("at", justify="right")
    all_good = True
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowstone-demo-", ignore_cleanup_errors=True) as directory:
        demo = Demo(directory)
        for step in demo.run():
            if console.is_terminal:  # somebody waits
                console.print(f"[dim]{step.name}: {step.figure}[/dim]", highlight=False)
            good, style = ("yes", None) if step.good else ("NO", "bold red")
            table.add_row(step.name, step.figure, good, f"{time.perf_counter() - begun:.1f} s", style=style)
            all_good = all_good and step.good
    console.print(table)
    print_revenue(console, demo.sales, demo.retried)
    outcome = "everything is there" if all_good else "SOMETHING IS MISSING"
    console.print(f"{outcome}; {time.perf_counter() - begun:.1f} s in all")
    return 0 if all_good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
