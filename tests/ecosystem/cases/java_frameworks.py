"""Flink's Kafka connector and Spring Kafka, each in a JVM that is killed in the middle."""

from __future__ import annotations

from collections import Counter
from functools import partial
from subprocess import Popen

from scripts.fetch_kafka import java_command

from tests.ecosystem.installs import java_classpath, java_program
from tests.ecosystem.product import Case, Product

FLINK_VERSION, FLINK_CONNECTOR_VERSION = "2.2.1", "5.0.0-2.2"
SPRING_VERSION = "4.1.1"
ORDERS, CUSTOMERS = 4000, 20
PAYMENTS = 600
FLINK_HEAP, SPRING_HEAP = "-Xmx512m", "-Xmx192m"
# What Flink's own scripts open of Java's modules, as far as this job needs it.
FLINK_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.util")
]


def _run_flink(case: Case, naming: str) -> None:
    modules = ("streaming-java", "clients", "connector-base")
    artifacts = [f"org.apache.flink:flink-{each}:{FLINK_VERSION}" for each in modules]
    connector = f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR_VERSION}"
    classpath = java_classpath(f"ecosystem-flink-{FLINK_VERSION}", *artifacts, connector)
    classes = java_program("FlinkTotals.java", classpath, case.folder)
    checkpoints = case.folder / "checkpoints"
    checkpoints.mkdir()
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)
    arguments = [case.bootstrap, str(checkpoints), naming]

    def start(name: str) -> Popen[bytes]:
        java = [java_command(), FLINK_HEAP, *FLINK_OPENS, "-cp", classes]
        return case.start([*java, "FlinkTotals", *arguments], name)

    orders = [(f"customer-{number % CUSTOMERS}", str(number)) for number in range(ORDERS)]
    case.produce("orders", orders[: ORDERS // 2])
    first = start("first")
    case.read("totals", lambda found: len(found) > ORDERS // 8, committed=True)
    first.kill()
    first.wait()
    case.produce("orders", orders[ORDERS // 2 :])
    start("second")
    case.wait_until("the job starts from a checkpoint", lambda: "starts from chk-" in case.output("second"))
    case.read("totals", lambda found: len(found) > ORDERS // 2, committed=True)
    case.restart_broker()
    wanted: Counter[str | None] = Counter()
    for key, value in orders:
        wanted[key] += int(value)
    records = case.read("totals", lambda found: len(found) >= ORDERS, committed=True)
    last = {key: int(value) for key, value in records}
    case.check("every total is right after a killed JVM and a killed broker", last, dict(wanted))
    case.check("each order was added once", len(records), ORDERS)


def _run_spring(case: Case) -> None:
    artifact = f"org.springframework.kafka:spring-kafka:{SPRING_VERSION}"
    classpath = java_classpath(f"ecosystem-spring-kafka-{SPRING_VERSION}", artifact)
    classes = java_program("SpringPayments.java", classpath, case.folder)
    for topic in ("payments", "paid", "refused"):
        case.create_topic(topic, 2)

    def start(name: str) -> Popen[bytes]:
        return case.start([java_command(), SPRING_HEAP, "-cp", classes, "SpringPayments", case.bootstrap], name)

    def produce(first: int, last: int) -> None:
        case.produce("payments", [(str(number), str(number)) for number in range(first, last)])

    produce(0, PAYMENTS // 2)
    listener = start("first")
    case.read("paid", lambda found: len(found) > PAYMENTS // 8)
    listener.kill()
    listener.wait()
    produce(PAYMENTS // 2, PAYMENTS)
    start("second")
    case.read("paid", lambda found: len(found) > PAYMENTS // 2)
    case.restart_broker()
    numbers = [str(number) for number in range(PAYMENTS)]
    refused = {each for each in numbers if each.endswith("0")}
    once = {each for each in numbers if each.endswith("5")}
    paid = set(numbers) - refused
    dead = {f"{each} of payments" for each in refused}
    case.check("all others are paid", set(case.read_values("paid", len(paid))), paid)
    case.check("what fails always is refused", set(case.read_values("refused", len(dead))), dead)
    retried = case.read_values("payments-retry-0", len(refused | once))
    case.check("what fails is in the first retry topic", set(retried), refused | once)
    again = case.read_values("payments-retry-1", len(refused))
    case.check("what fails again is in the second retry topic", set(again), refused)
    letters = case.read_values("payments-dlt", len(refused))
    case.check("the dead letter topic has what was refused", set(letters), refused)


FLINK = tuple(
    Product(
        f"flink-{naming.lower()}",
        "Flink",
        f"{FLINK_VERSION}, connector {FLINK_CONNECTOR_VERSION}",
        f"totals by key, exactly once, transactional ids by {naming.lower()}: a JVM killed with -9 that starts from its"
        " newest checkpoint, a killed broker",
        partial(_run_flink, naming=naming),
    )
    for naming in ("INCREMENTING", "POOLING")
)
SPRING = Product(
    "spring-kafka",
    "Spring Kafka",
    SPRING_VERSION,
    "@RetryableTopic with two retry topics and a dead letter topic: a listener killed in the middle, a killed broker",
    _run_spring,
)
