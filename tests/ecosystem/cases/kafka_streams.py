"""Kafka Streams of Apache Kafka's release: two instances with standbys, of which one is killed."""

from __future__ import annotations

from functools import partial
from subprocess import Popen

from scripts.client_suites.suite import CheckFailed
from scripts.fetch_kafka import KAFKA_VERSION, java_command

from tests.ecosystem.installs import java_program, kafka_with
from tests.ecosystem.product import Case, Product

ORDERS, CUSTOMERS = 4000, 20
ROCKSDB_VERSION = "10.1.3"
HEAP = "-Xmx256m"


def _run_streams(case: Case, guarantee: str) -> None:
    classpath = kafka_with(
        "streams",
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
        f"org.rocksdb:rocksdbjni:{ROCKSDB_VERSION}",
    )
    classes = java_program("Totals.java", classpath, case.folder)
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)

    def start(name: str) -> Popen[bytes]:
        arguments = [case.bootstrap, guarantee, str(case.folder / name)]
        return case.start([java_command(), HEAP, "-cp", classes, "Totals", *arguments], name)

    orders = _orders()
    case.produce("orders", orders[: ORDERS // 2])
    first = start("first")
    start("second")
    case.read("totals", lambda found: len(found) > ORDERS // 8)
    first.kill()
    case.produce("orders", orders[ORDERS // 2 :])
    case.restart_broker()
    is_exact = guarantee == "exactly_once_v2"
    wanted: dict[str | None, int] = {}
    for key, value in orders:
        wanted[key] = wanted.get(key, 0) + int(value)

    def are_complete(found: list[tuple[str | None, str]]) -> bool:
        last = dict(found)
        return all(int(last.get(key, "0")) >= total for key, total in wanted.items())

    records = case.read("totals", are_complete, committed=is_exact)
    last = {key: int(value) for key, value in records}
    if is_exact:
        case.check("every total is right after a killed instance and a killed broker", last, wanted)
        case.check("each order was added once", len(records), ORDERS)
    elif not are_complete(records):
        raise CheckFailed(f"totals are too small: {last}")
    else:
        case.check("no total is too small after a killed instance and a killed broker", len(last), CUSTOMERS)


def _orders() -> list[tuple[str | None, str]]:
    return [(f"customer-{number % CUSTOMERS}", str(number)) for number in range(ORDERS)]


STREAMS = tuple(
    Product(
        f"kafka-streams-{name}",
        "Kafka Streams",
        KAFKA_VERSION,
        f"totals by key, {guarantee}, two instances with standbys: a killed instance, a killed broker",
        partial(_run_streams, guarantee=guarantee),
    )
    for name, guarantee in (("alos", "at_least_once"), ("eos", "exactly_once_v2"))
)
