"""The steps of the demo that run its pipeline, with each figure compared with what Python computes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from scripts.demo_parts.broker import BrokerProcess
from scripts.demo_parts.events import ROWS
from scripts.demo_parts.pipeline import (
    BROKEN,
    BROKER_DIES_AT,
    DRIVER_DIES_AT,
    KILL_DELAY_S,
    Row,
    SalesPipeline,
    Written,
    expected_sales,
)
from scripts.demo_parts.step import Step

SINKS = ("topic", "table")


class PipelineSteps:
    """The pipeline of the demo in steps; `broker` is the current one, because one is killed on the way."""

    def __init__(self, scratch: str, start_ms: int, broker: BrokerProcess) -> None:
        self._pipeline = SalesPipeline(scratch)
        self._start_ms, self._expected = start_ms, expected_sales(start_ms)
        self.broker = broker
        self.written: Written | None = None  # in the end

    @property
    def retried(self) -> Counter[Row]:
        return self._expected.missing

    def run(self, restart_broker: Callable[[], BrokerProcess]) -> Iterator[Step]:
        try:
            yield from self._run_with_kills(restart_broker)
            yield from self._compare()
            yield from self._retry()
        finally:
            self._pipeline.close()

    def _run_with_kills(self, restart_broker: Callable[[], BrokerProcess]) -> Iterator[Step]:
        pipeline, total = self._pipeline, ROWS["orders"] + len(BROKEN)
        ready_s, begun = pipeline.start(self.broker), time.perf_counter()
        yield Step("start `flowstone pipeline run`", f"{total:,} orders to do, running after {ready_s:.1f} s", True)
        left = pipeline.wait_for_lag(self.broker, int(total * DRIVER_DIES_AT))
        time.sleep(KILL_DELAY_S)
        pipeline.kill()
        yield Step("kill -9 its driver, with Spark", f"{left:,} orders left", 0 < left < total)
        yield Step("start it again", f"running after {pipeline.start(self.broker):.1f} s", True)
        left = pipeline.wait_for_lag(self.broker, int(total * BROKER_DIES_AT))
        time.sleep(KILL_DELAY_S)
        self.broker = restart_broker()
        told = f"{left:,} orders left, ready again in {self.broker.ready_s:.2f} s"
        yield Step("kill -9 the broker, and start it again", told, 0 < left < total)
        # The run has its code in memory; another command may compare the next version meanwhile.
        pipeline.fix()
        pipeline.start_diff(self.broker.address, self._start_ms)
        left = pipeline.wait_for_lag(self.broker, 0)
        yield Step("the pipeline goes on by itself", f"all done in {time.perf_counter() - begun:.1f} s", left == 0)
        status = pipeline.stop()
        yield Step("stop it", f"exit status {status}", status == 0)
        found, due = pipeline.written(self.broker.address), self._expected
        yield _rows("a read_committed reader of its topic", found.topic, due.known)
        yield _rows("a reader of its Delta table", found.table, due.known)
        letters = due.missing_records + Counter(BROKEN)
        told = f"{due.missing.total():,} of a product not in the catalogue, {len(BROKEN)} not JSON"
        yield Step(
            "its dead letters", told if found.letters == letters else "others than due", found.letters == letters
        )

    def _compare(self) -> Iterator[Step]:
        """Compare the pipeline with one whose catalogue has the missing product."""
        due = self._expected.compared
        found = self._pipeline.diff()
        for sink in SINKS:
            old, new, added, removed, changed = (
                found[sink][name] for name in ("rows_old", "rows_new", "added", "removed", "changed")
            )
            yield Step(
                f"`diff` of a fixed pipeline: its {sink}",
                f"{old:,} → {new:,} rows: {added:,} added, {removed:,} removed, {changed:,} changed",
                (old, new, added, removed, changed) == (due[True], due.total(), due[False], 0, 0),
            )

    def _retry(self) -> Iterator[Step]:
        """Retry all dead letters with the fixed pipeline: those that are not JSON fail again."""
        begun, due, pipeline = time.perf_counter(), self._expected, self._pipeline
        done = pipeline.retry(self.broker.address)
        count = due.missing.total()
        yield Step(
            "`letters retry` with the fixed pipeline",
            f"{done['retried']:,} retried, {done['letters_again']:,} failed again; {time.perf_counter() - begun:.1f} s",
            done["retried"] == count + len(BROKEN)
            and done["letters_again"] == len(BROKEN)
            and done["rows_out"] == dict.fromkeys(SINKS, count),
        )
        found = self.written = pipeline.written(self.broker.address)
        yield _rows("its topic now", found.topic, due.known + due.missing)
        yield _rows("its Delta table now", found.table, due.known + due.missing)
        left = pipeline.open_letters(self.broker.address)
        yield Step("dead letters left", f"{left.total()} not JSON", left == Counter(each.decode() for each in BROKEN))


def _rows(name: str, found: Counter[Row], due: Counter[Row]) -> Step:
    missing, surplus = (due - found).total(), (found - due).total()
    told = "each order once" if found == due else f"{missing:,} missing, {surplus:,} too many"
    cents = sum(row.amount_cents for row in found.elements())
    return Step(name, f"{found.total():,} rows, {cents / 100:,.2f} €: {told}", found == due)
