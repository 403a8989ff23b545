"""The pipeline of the demo: orders into a topic and a table, through kills, a fix and a retry of dead letters.

`scripts/demo_sales` is the pipeline. Each order becomes a row of the topic `sales` and of a Delta table. Orders of a
product that is missing in the pipeline's catalogue, and records that are not JSON, become dead letters. Python computes
from the same events which rows and letters there have to be.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from deltalake import DeltaTable
from scripts.demo_parts.broker import BrokerProcess, client_config, look_at_group
from scripts.demo_parts.driver import Command, Driver, ask
from scripts.demo_parts.events import SPAN_S, Sum, events

import flowstone
from flowstone.cli.records.event_streams import PRODUCTS

SOURCE = Path(__file__).parents[1] / "demo_sales"
GROUP = "sales"
MISSING = "p-12"
BROKEN = tuple(f"broken order {number}".encode() for number in range(50))
# Shares of the orders that are left when the driver and the broker are killed, this long after a micro-batch ended.
DRIVER_DIES_AT, BROKER_DIES_AT = 0.7, 0.5
KILL_DELAY_S = 0.3
# `diff` reads the last quarter of the orders.
DIFF_FROM_S = SPAN_S * 3 // 4
TIMEOUT_S = 120
LOOK_S = 0.05
FLUSH_TIMEOUT_S = 30


class Row(NamedTuple):
    order_id: str
    at_s: int
    category: str
    amount_cents: int


class Expected(NamedTuple):
    """The rows of orders whose product is in the catalogue, those of the missing product, and their records."""

    known: Counter[Row]
    missing: Counter[Row]
    missing_records: Counter[bytes]
    compared: Counter[bool]  # of the orders that `diff` reads, those whose product is in the catalogue or is not


class Written(NamedTuple):
    """What a read_committed reader finds."""

    topic: Counter[Row]
    table: Counter[Row]
    letters: Counter[bytes]


def expected_sales(start_ms: int) -> Expected:
    categories = {product.product_id: product.category for product in PRODUCTS}
    found = Expected(Counter(), Counter(), Counter(), Counter())
    for event in events("orders", start_ms):
        order = json.loads(event.value)
        at_s = int(datetime.fromisoformat(order["event_time"]).timestamp())
        row = Row(order["order_id"], at_s, categories[order["product_id"]], order["amount_cents"])
        if event.timestamp_ms >= start_ms + DIFF_FROM_S * 1000:
            found.compared[order["product_id"] != MISSING] += 1
        if order["product_id"] == MISSING:
            found.missing[row] += 1
            found.missing_records[event.value] += 1
        else:
            found.known[row] += 1
    return found


def break_orders(address: str, total: Sum) -> None:
    """Write records that are not JSON among the orders, and add them to `total`."""
    producer = Producer({**client_config(address), "acks": "all"})
    for value in BROKEN:
        producer.produce("orders", value, b"")
        total.add(b"", value)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise SystemExit(f"demo: the broken orders were not stored in {FLUSH_TIMEOUT_S} s")


class SalesPipeline:
    """The pipeline in a directory of its own, its run if there is one, and its outputs."""

    def __init__(self, scratch: str) -> None:
        self.directory, self._old = Path(scratch, "sales"), Path(scratch, "sales-old")
        for each in (self.directory, self._old):
            shutil.copytree(SOURCE, each, ignore=shutil.ignore_patterns("__pycache__", ".flowstone", "lake"))
        self.driver: Driver | None = None
        self._diff: Command | None = None

    def start(self, broker: BrokerProcess) -> float:
        self.driver = Driver(self.directory, broker.address)
        return self.driver.ready_s

    def wait_for_lag(self, broker: BrokerProcess, most: int) -> int:
        """Wait until at most so many records are left, and return how many they are."""
        found = -1

        def is_there() -> bool:
            nonlocal found
            if self.driver is not None:
                self.driver.check()
            group = look_at_group(broker.http_address, GROUP)
            found = group["lag"] if group["partitions"] else -1
            return 0 <= found <= most

        self._wait(is_there, f"has not come down to {most} records")
        return found

    def kill(self) -> None:
        if self.driver is not None:
            self.driver.kill()
        self.driver = None

    def close(self) -> None:
        """Kill what still runs."""
        self.kill()
        if self._diff is not None:
            self._diff.kill()

    def stop(self) -> int:
        assert self.driver is not None
        return self.driver.stop()

    def written(self, address: str) -> Written:
        def values(topic: str) -> list[bytes]:
            read = flowstone.read(topic, columns=["value"], read_committed=True, bootstrap=address)
            found: list[bytes] = read["value"].to_pylist()
            return found

        table = DeltaTable(str(self.directory / "lake/sales")).to_pyarrow_table(columns=list(Row._fields))
        return Written(
            Counter(Row(**json.loads(value)) for value in values("sales")),
            Counter(map(Row._make, zip(*(column.to_pylist() for column in table.columns), strict=True))),
            Counter(values("sales-letters")),
        )

    def fix(self) -> None:
        """Add the missing product to the catalogue."""
        path = self.directory / "pipeline.py"
        before = path.read_text(encoding="utf-8")
        after = before.replace('"p-10"]', f'"p-10", "{MISSING}"]')
        if after == before:
            raise SystemExit(f"demo: {SOURCE / 'pipeline.py'} has no catalogue that ends with p-10")
        path.write_text(after, encoding="utf-8")

    def start_diff(self, address: str, start_ms: int) -> None:
        """Start to compare the fixed pipeline with the one before, which writes nothing and disturbs no run."""
        start = datetime.fromtimestamp(start_ms / 1000 + DIFF_FROM_S, UTC).isoformat(timespec="milliseconds")
        options = ("--against", str(self._old), "--from", start, "--examples", "0")
        self._diff = Command("diff", self.directory, address, *options)

    def diff(self) -> dict[str, dict[str, Any]]:
        """Return for each sink how the fixed pipeline's rows differ from those of the one before."""
        assert self._diff is not None
        (found,) = self._diff.documents()
        return {each["sink"]: each for each in found["sinks"]}

    def retry(self, address: str) -> dict[str, Any]:
        (found,) = ask("letters retry", self.directory, address, "--all")
        return dict(found)

    def open_letters(self, address: str) -> Counter[str]:
        found = ask("letters list", self.directory, address, "--limit", "100000")
        return Counter(each["value"] for each in found)

    def _wait(self, condition: Callable[[], bool], told: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline_s:
                last = self.driver.told() if self.driver is not None else ""
                raise SystemExit(f"demo: the pipeline {told} in {TIMEOUT_S} s:\n{last}")
            time.sleep(LOOK_S)
