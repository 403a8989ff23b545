"""The Spark examples do what they say: each is held to what plain Python makes of the same events, and to its page."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.spark import (
    backfill_then_live,
    changelog_to_table,
    dedupe,
    enrichment_join,
    ingest_to_parquet,
    sessions,
    stage,
    topic_to_topic,
    update_mode,
    windowed_aggregation,
)
from flowstone.cli.records.event_streams import PRODUCTS, Event
from tests.support.pages import DOCS, ROOT, assert_prints, blocks, is_same

PAGE = DOCS / "spark-examples.md"
EXAMPLES = sorted(path for path in (ROOT / "examples" / "spark").glob("*.py") if "stage.main(run)" in path.read_text())

PROGRAM_TIMEOUT_S = 240

Run = Callable[[ModuleType], Any]


@pytest.fixture
def run(spark: SparkSession, bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example, which must print what the page says it prints; what it returns."""

    def run(example: ModuleType) -> Any:
        capsys.readouterr()  # the session may have had a word to say
        result = example.run(spark, bootstrap, tmp_path)
        assert_prints(printed_by(example.__name__), capsys.readouterr().out, is_same)
        return result

    return run


def printed_by(module: str) -> str:
    """According to the page: the block after the one with the command."""
    on_page = blocks(PAGE)
    (at,) = (at for at, block in enumerate(on_page) if block.text == f"python -m {module}\n")
    assert on_page[at + 1].language == "text"
    return on_page[at + 1].text


def event_ms(event: Event) -> int:
    return int(datetime.fromisoformat(stage.fields(event)["event_time"]).timestamp() * 1000)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_lines_on_the_page_are_the_examples_own(example: Path) -> None:
    name = f"# {example.relative_to(ROOT)}\n"
    (shown,) = (block.text for block in blocks(PAGE) if block.text.startswith(name))
    source = example.read_text(encoding="utf-8").splitlines()
    for part in shown.removeprefix(name).split("# …\n"):
        length = part.count("\n")
        assert part in [
            textwrap.dedent("\n".join(source[at : at + length]) + "\n") for at in range(len(source) - length + 1)
        ]


@pytest.mark.long
def test_an_example_runs_as_a_program_with_a_session_and_a_broker_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", enrichment_join.__name__],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")},
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert_prints(printed_by(enrichment_join.__name__), done.stdout, is_same)


@pytest.mark.long
def test_each_record_is_a_row_of_the_table_once_even_if_it_does_not_parse(run: Run) -> None:
    result = run(ingest_to_parquet)
    orders = stage.events("orders", ingest_to_parquet.ORDERS)
    assert result.rows == [len(orders) // 2, len(orders) + 1, len(orders) + 1]
    assert sorted(result.order_ids) == sorted(stage.fields(event)["order_id"] for event in orders)
    assert result.unparsed == [ingest_to_parquet.BROKEN.value.decode()]
    assert result.lag == 0


@pytest.mark.long
def test_windows_have_every_order_that_came_before_they_were_closed(run: Run) -> None:
    result = run(windowed_aggregation)
    orders = stage.events("orders", windowed_aggregation.ORDERS)
    size_ms = windowed_aggregation.WINDOW_S * 1000
    per_run = len(orders) // windowed_aggregation.RUNS
    watermark_ms, late = 0, Counter[str]()
    totals: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in range(windowed_aggregation.RUNS):
        part = orders[number * per_run : (number + 1) * per_run]
        for event in part:
            start_ms = event_ms(event) // size_ms * size_ms
            is_closed = start_ms + size_ms <= watermark_ms
            if not is_closed:
                count, cents = totals[start_ms]
                totals[start_ms] = count + 1, cents + stage.fields(event)["amount_cents"]
            if start_ms + size_ms <= part[0].timestamp_ms:
                late["left out" if is_closed else "counted"] += 1
        watermark_ms = max(watermark_ms, *map(event_ms, part)) - windowed_aggregation.WAIT_S * 1000
    closed = {start_ms: each for start_ms, each in totals.items() if start_ms + size_ms <= watermark_ms}
    assert result.windows == closed
    assert result.written_after_each_run == sorted(result.written_after_each_run)
    assert min(late["left out"], late["counted"]) > 0, "the events show both"


@pytest.mark.long
def test_each_order_is_joined_with_the_last_that_was_said_of_its_product(run: Run) -> None:
    result = run(enrichment_join)
    categories = {each.product_id: each.category for each in PRODUCTS} | {enrichment_join.MISSING: "unknown"}
    cents, counts = Counter[str](), Counter[str]()
    for order in map(stage.fields, stage.events("orders", enrichment_join.ORDERS)):
        cents[categories[order["product_id"]]] += order["amount_cents"]
        counts[categories[order["product_id"]]] += 1
    assert result == enrichment_join.Result(cents, counts)
    assert counts["unknown"] > 0


@pytest.mark.long
def test_a_click_that_was_delivered_twice_is_in_the_table_once(run: Run) -> None:
    result = run(dedupe)
    clicks = [stage.fields(event)["click_id"] for event in stage.events("clicks", dedupe.CLICKS)]
    assert result.records == len(clicks) + dedupe.SENT_AGAIN
    assert result.click_ids == sorted(set(clicks))
    assert len(clicks) > len(set(clicks)), "the generator repeats some"


@pytest.mark.long
def test_the_visits_that_are_over_are_those_that_the_pauses_between_clicks_make(run: Run) -> None:
    result = run(sessions)
    clicks = stage.events("clicks", sessions.CLICKS)
    watermark_ms = max(map(event_ms, clicks)) - sessions.WAIT_S * 1000
    pause_ms = sessions.PAUSE_S * 1000
    expected = []
    by_user = sorted((stage.fields(event)["user_id"], event_ms(event)) for event in clicks)
    for user, times in groupby(by_user, key=lambda each: each[0]):
        visit: list[int] = []
        for _user, at_ms in [*times, (user, float("inf"))]:
            if visit and at_ms >= visit[-1] + pause_ms:
                expected.append(sessions.Session(user, visit[0], visit[-1] + pause_ms, len(visit)))
                visit = []
            visit.append(at_ms)
    assert result.sessions == sorted(each for each in expected if each.end_ms <= watermark_ms)
    assert result.sessions


def test_large_orders_are_in_the_other_topic_in_the_order_of_their_keys(run: Run) -> None:
    result = run(topic_to_topic)
    orders = map(stage.fields, stage.events("orders", topic_to_topic.ORDERS))
    expected: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for order in orders:
        if order["amount_cents"] >= topic_to_topic.LARGE_CENTS:
            expected[order["customer_id"]].append((order["order_id"], order["amount_cents"]))
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for key, order_id, cents in result.orders:
        found[key].append((order_id, cents))
    assert found == expected
    assert result.timestamps_kept
    assert result.lag == 0


@pytest.mark.long
def test_the_last_record_of_each_key_is_its_sum(run: Run) -> None:
    result = run(update_mode)
    spent: Counter[str] = Counter()
    for event in stage.events("orders", update_mode.ORDERS):
        order = stage.fields(event)
        spent[order["customer_id"]] += order["amount_cents"]
    assert result.sums == spent
    assert len(spent) < result.records <= 2 * len(spent), "only changed sums are written, in each of two runs"


@pytest.mark.long
def test_the_table_has_the_last_value_of_each_key_and_no_key_that_was_deleted(run: Run) -> None:
    result = run(changelog_to_table)
    last = {event.key: event for event in stage.events("devices", changelog_to_table.READINGS)}
    for key in changelog_to_table.RETIRED:
        del last[key]
    assert result.readings == {key.decode(): stage.fields(event)["temperature_c"] for key, event in last.items()}


@pytest.mark.long
def test_the_past_and_what_is_live_meet_without_a_gap_or_an_overlap(run: Run) -> None:
    result = run(backfill_then_live)
    orders = stage.events("orders", backfill_then_live.ORDERS)
    wanted = [stage.fields(each)["order_id"] for each in orders if each.timestamp_ms >= backfill_then_live.SINCE_MS]
    assert sorted(result.backfilled + result.live) == sorted(wanted)
    assert result.backfilled
    assert result.live
