"""Three streams of realistic test events: orders, clicks and device readings.

The module is pure: the same kind, seed, start and rate give the same bytes. Values are JSON objects. A record's
timestamp is when it reaches the topic; the `event_time` in its value is when the event happened, usually shortly
before. For some records it is minutes before, as with phones without network and gateways that buffer.

- orders, keyed by customer: a few customers buy much, a few products sell most. `PRODUCTS` is the catalogue to join.
- clicks, keyed by user: visits of some clicks each, with gaps between them; some clicks are delivered twice, under the
  same `click_id`.
- devices, keyed by device: readings that wander; a device that was cut off delivers what it has kept, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from flowstone.cli.common.json_output import encode


class Event(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int


class Product(NamedTuple):
    product_id: str
    name: str
    category: str
    price_cents: int


# The first products sell most.
PRODUCTS = (
    Product("p-01", "Espresso beans 1 kg", "coffee", 1890),
    Product("p-02", "Filter papers", "accessories", 390),
    Product("p-03", "Green tea 100 g", "tea", 850),
    Product("p-04", "Oat biscuits", "snacks", 320),
    Product("p-05", "Mug, stoneware", "accessories", 1450),
    Product("p-06", "Decaf beans 500 g", "coffee", 1150),
    Product("p-07", "Earl Grey 200 g", "tea", 990),
    Product("p-08", "Dark chocolate", "snacks", 280),
    Product("p-09", "Hand grinder", "equipment", 5900),
    Product("p-10", "Pour-over kettle", "equipment", 7900),
    Product("p-11", "Chai 250 g", "tea", 1090),
    Product("p-12", "Espresso machine", "equipment", 64900),
)
COUNTRIES = ("DE", "FR", "PL", "ES", "NL", "SE", "JP")
PAGES = ("/", "/search", "/coffee", "/tea", "/equipment", "/cart", "/checkout", "/help")
REFERRERS = ("search", "newsletter", "social", "")
CUSTOMERS = 2_000
USERS = 5_000
DEVICES = 200

ORDERS_LATE_SHARE = 0.02
CLICKS_LATE_SHARE = 0.01
CLICKS_REPEATED_SHARE = 0.01
VISITS_AT_ONCE = 60
VISIT_ENDS_SHARE = 0.12
OUTAGE_SHARE = 0.003
READINGS_KEPT = range(3, 12)
READING_EVERY_MS = 15_000

DELAY_MEAN_MS = 400.0
LATE_MS = (20_000, 600_000)

# An event of a stream: key, age in milliseconds on arrival, and the rest of the value.
_Happening = tuple[str, int, dict[str, Any]]


def generate(kind: str, rows: int, *, start_ms: int, per_second: float, seed: int = 0) -> Iterator[Event]:
    """Yield `rows` events of a kind in `KINDS`, at a steady rate from `start_ms`."""
    for index, (key, delay_ms, fields) in enumerate(islice(KINDS[kind](Random(seed)), rows)):
        timestamp_ms = start_ms + int(index * 1000 / per_second)
        value = encode({"event_time": _text(timestamp_ms - delay_ms), **fields})
        yield Event(key.encode(), value.encode(), timestamp_ms)


def _orders(random: Random) -> Iterator[_Happening]:
    number = 0
    while True:
        number += 1
        customer = f"customer-{_favourite(random, CUSTOMERS):04d}"
        product = PRODUCTS[_favourite(random, len(PRODUCTS))]
        quantity = 1 + int(random.expovariate(1.2))
        fields = {
            "order_id": f"o-{number:08d}",
            "customer_id": customer,
            "product_id": product.product_id,
            "quantity": quantity,
            "amount_cents": quantity * product.price_cents,
            "country": COUNTRIES[_favourite(random, len(COUNTRIES))],
        }
        yield customer, _delay_ms(random, ORDERS_LATE_SHARE), fields


class _Visit(NamedTuple):
    user: str
    referrer: str


def _clicks(random: Random) -> Iterator[_Happening]:
    visits = [_begin_visit(random) for _ in range(VISITS_AT_ONCE)]
    number = 0
    while True:
        number += 1
        at = random.randrange(VISITS_AT_ONCE)
        visit = visits[at]
        fields = {
            "click_id": f"c-{number:08d}",
            "user_id": visit.user,
            "page": PAGES[_favourite(random, len(PAGES))],
            "referrer": visit.referrer,
            "load_ms": int(random.lognormvariate(5.0, 0.6)),
        }
        delay_ms = _delay_ms(random, CLICKS_LATE_SHARE)
        yield visit.user, delay_ms, fields
        if random.random() < CLICKS_REPEATED_SHARE:
            yield visit.user, delay_ms, fields
        if random.random() < VISIT_ENDS_SHARE:
            visits[at] = _begin_visit(random)


def _begin_visit(random: Random) -> _Visit:
    return _Visit(f"user-{random.randrange(USERS):04d}", random.choice(REFERRERS))


def _devices(random: Random) -> Iterator[_Happening]:
    temperatures = [random.uniform(15.0, 25.0) for _ in range(DEVICES)]
    batteries = [random.uniform(40.0, 100.0) for _ in range(DEVICES)]
    while True:
        at = random.randrange(DEVICES)
        kept = random.choice(READINGS_KEPT) if random.random() < OUTAGE_SHARE else 1
        for age in reversed(range(kept)):
            temperatures[at] += random.gauss(0.0, 0.2) + (20.0 - temperatures[at]) * 0.01
            batteries[at] = batteries[at] - 0.01 if batteries[at] > 5.0 else 100.0
            device = f"device-{at:03d}"
            fields = {
                "device_id": device,
                "temperature_c": round(temperatures[at], 2),
                "humidity_percent": round(random.gauss(45.0, 6.0), 1),
                "battery_percent": round(batteries[at], 1),
            }
            yield device, age * READING_EVERY_MS + _delay_ms(random, 0.0), fields


KINDS: dict[str, Callable[[Random], Iterator[_Happening]]] = {
    "orders": _orders,
    "clicks": _clicks,
    "devices": _devices,
}


def _favourite(random: Random, count: int) -> int:
    """Return a random number below `count`; half of the results are in the first eighth."""
    return int(count * random.random() ** 3)


def _delay_ms(random: Random, late_share: float) -> int:
    if random.random() < late_share:
        return random.randint(*LATE_MS)
    return int(random.expovariate(1 / DELAY_MEAN_MS))


def _text(time_ms: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
