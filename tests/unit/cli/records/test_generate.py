"""`flowstone generate`, and the streams behind it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from flowstone.cli.records.event_streams import KINDS, PRODUCTS, Event, generate

Call = Callable[..., str]
Prepare = Callable[..., None]

START_MS = 1_767_225_600_000


def events(kind: str, rows: int = 5000, seed: int = 1) -> list[Event]:
    return list(generate(kind, rows, start_ms=START_MS, per_second=100, seed=seed))


def documents(kind: str, rows: int = 5000) -> list[dict[str, Any]]:
    return [json.loads(event.value) for event in events(kind, rows)]


def lateness_ms(event: Event) -> int:
    happened = datetime.fromisoformat(json.loads(event.value)["event_time"])
    return event.timestamp_ms - round(happened.timestamp() * 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(kind: str) -> None:
    assert events(kind) == events(kind)
    assert events(kind) != events(kind, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_rows_are_the_first_of_more(kind: str) -> None:
    assert events(kind, 100) == events(kind, 5000)[:100]


@pytest.mark.parametrize("kind", KINDS)
def test_records_come_at_a_steady_rate(kind: str) -> None:
    assert [event.timestamp_ms - START_MS for event in events(kind, 300)] == [10 * index for index in range(300)]


@pytest.mark.parametrize("kind", KINDS)
def test_most_events_are_told_at_once_and_some_late_but_none_early(kind: str) -> None:
    delays_ms = [lateness_ms(event) for event in events(kind)]
    late = sum(delay_ms > 10_000 for delay_ms in delays_ms) / len(delays_ms)
    assert min(delays_ms) >= 0
    assert 0.002 < late < 0.05


@pytest.mark.parametrize(
    ("kind", "field"), [("orders", "customer_id"), ("clicks", "user_id"), ("devices", "device_id")]
)
def test_the_key_is_whose_event_it_is(kind: str, field: str) -> None:
    assert all(event.key.decode() == json.loads(event.value)[field] for event in events(kind, 500))


def test_an_order_costs_what_the_catalogue_says() -> None:
    prices_cents = {product.product_id: product.price_cents for product in PRODUCTS}
    for order in documents("orders", 500):
        assert order["amount_cents"] == order["quantity"] * prices_cents[order["product_id"]]


def test_some_clicks_come_twice_under_one_id() -> None:
    counts = Counter(click["click_id"] for click in documents("clicks"))
    assert set(counts.values()) == {1, 2}
    assert 0.003 < sum(count == 2 for count in counts.values()) / len(counts) < 0.03


def test_orders_have_ids_of_their_own() -> None:
    assert len({order["order_id"] for order in documents("orders")}) == 5000


def test_the_command_writes_to_the_topic_of_the_kind(call: Call, prepare: Prepare) -> None:
    prepare("devices", partitions=2)
    assert call("generate", "devices", "--rows", 50, "--seed", 3, "--start", START_MS) == "stored 50 records\n"
    records = [json.loads(line) for line in call("consume", "devices", "--json").splitlines()]
    expected = generate("devices", 50, start_ms=START_MS, per_second=50 / 3600, seed=3)
    assert sorted((each["key"], each["value"], each["timestamp"]) for each in records) == sorted(
        (event.key.decode(), event.value.decode(), event.timestamp_ms) for event in expected
    )


def test_without_a_start_the_last_record_is_of_now(call: Call, prepare: Prepare) -> None:
    prepare("generated-now")
    begun_ms = time.time() * 1000
    call("generate", "orders", "--topic", "generated-now", "--rows", 60)
    times_ms = [json.loads(line)["timestamp"] for line in call("consume", "generated-now", "--json").splitlines()]
    assert times_ms[0] == pytest.approx(begun_ms - 3_600_000, abs=10_000)
    assert times_ms[-1] == pytest.approx(begun_ms, abs=70_000)


def test_a_rate_is_kept(call: Call, prepare: Prepare) -> None:
    prepare("generated-live")
    begun_s = time.monotonic()
    printed = call("generate", "clicks", "--topic", "generated-live", "--rows", 50, "--rate", 100, "--json")
    assert json.loads(printed) == {"topic": "generated-live", "stored": 50, "interrupted": False}
    assert time.monotonic() - begun_s >= 0.49


def test_an_unknown_kind_is_refused(refused: Call) -> None:
    assert "there are no invoices: choose one of orders, clicks, devices" in refused("generate", "invoices")


def test_a_start_and_a_rate_contradict_each_other(refused: Call) -> None:
    assert "--start is for records sent all at once" in refused("generate", "orders", "--start", "0", "--rate", "5")


def test_a_missing_topic_is_refused(refused: Call) -> None:
    assert "there is no topic orders-nowhere" in refused("generate", "orders", "--topic", "orders-nowhere")
