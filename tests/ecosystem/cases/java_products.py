"""Kafka Connect, MirrorMaker 2 and Kafka Streams, of Apache Kafka's release: each loses a worker on the way."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from scripts.client_suites.suite import CheckFailed, cached, run, tool
from scripts.fetch_kafka import KAFKA_VERSION, fetch_artifact, java_command, kafka_classpath

from bench.servers import Kafka, free_ports
from tests.ecosystem.product import PROGRAMS, Case, Product

LINES = 2000
ORDERS, CUSTOMERS = 4000, 20
ROCKSDB_VERSION = "10.1.3"
REST_TIMEOUT_S = 10
REBALANCE_TIMEOUT_S = 120
HEAP = "-Xmx256m"
# What MirrorMaker creates for itself: `NAME.replication.factor`.
MIRROR_TOPICS = (
    "checkpoints.topic",
    "heartbeats.topic",
    "offset-syncs.topic",
    "config.storage",
    "offset.storage",
    "status.storage",
)


def _classpath(name: str, *artifacts: str) -> str:
    """Return Kafka's class path with further artifacts of Maven Central before it."""

    def fill(folder: Path) -> None:
        for artifact in artifacts:
            fetch_artifact(artifact, folder)

    return f"{cached(f'ecosystem-{name}-{KAFKA_VERSION}', fill)}/*:{kafka_classpath()}"


def _properties(path: Path, values: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)


# Kafka Connect


class _Rest:
    """The REST interface of Connect's workers: asks the first that answers."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        for port in self._ports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as answer:
                    text = answer.read()
                    return answer.status, json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                return error.code, None
            except OSError:
                continue
        return 0, None

    def are_running(self, connectors: int) -> bool:
        _, names = self.ask("GET", "/connectors")
        states = [self.ask("GET", f"/connectors/{name}/status")[1] for name in names or ()]
        tasks = [task["state"] for state in states if state for task in state["tasks"]]
        return len(tasks) == connectors and set(tasks) == {"RUNNING"}


def _run_connect(case: Case) -> None:
    classpath = _classpath("connect", f"org.apache.kafka:connect-file:{KAFKA_VERSION}")
    source, sink = case.folder / "source.txt", case.folder / "sink.txt"
    ports = free_ports(2)
    rest = _Rest(ports)

    def start(number: int) -> Popen[bytes]:
        converter = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": case.bootstrap,
            "group.id": "connect",
            "listeners": f"http://127.0.0.1:{ports[number]}",
            "key.converter": converter,
            "value.converter": converter,
            "config.storage.topic": "connect-configs",
            "offset.storage.topic": "connect-offsets",
            "status.storage.topic": "connect-status",
            "config.storage.replication.factor": 1,
            "offset.storage.replication.factor": 1,
            "status.storage.replication.factor": 1,
            "offset.storage.partitions": 5,
            "offset.flush.interval.ms": 1000,
            "session.timeout.ms": 10_000,
            "scheduled.rebalance.max.delay.ms": 1000,
        }
        file = _properties(case.folder / f"worker-{number}.properties", settings)
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return case.start([java_command(), HEAP, "-cp", classpath, main, file], f"worker-{number}")

    workers = [start(0), start(1)]
    case.wait_until("Connect's workers answer", lambda: rest.ask("GET", "/connectors")[0] == 200)
    source.write_text("".join(f"line {number}\n" for number in range(LINES // 2)))
    package = "org.apache.kafka.connect.file"
    connectors = {
        "lines-in": {"connector.class": f"{package}.FileStreamSourceConnector", "file": str(source), "topic": "lines"},
        "lines-out": {
            "connector.class": f"{package}.FileStreamSinkConnector",
            "file": str(sink),
            "topics": "lines",
            "consumer.override.auto.offset.reset": "earliest",
        },
    }
    for name, settings in connectors.items():
        status, _ = rest.ask("POST", "/connectors", {"name": name, "config": {"tasks.max": "1", **settings}})
        case.check(f"{name} is created", status, 201)
    case.wait_until("the connectors run", lambda: rest.are_running(2), REBALANCE_TIMEOUT_S)
    case.wait_until("the sink has the first lines", lambda: len(_lines(sink)) >= LINES // 2)

    def has_source_offset() -> bool:
        _, body = rest.ask("GET", "/connectors/lines-in/offsets")
        return bool(body and body["offsets"])

    case.wait_until("the source's offset is stored", has_source_offset)
    workers[0].kill()
    case.restart_broker()
    with source.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(LINES // 2, LINES))
    case.wait_until("the connectors run again", lambda: rest.are_running(2), REBALANCE_TIMEOUT_S)
    wanted = {f"line {number}" for number in range(LINES)}
    case.wait_until("the sink has all lines", lambda: set(_lines(sink)) == wanted, REBALANCE_TIMEOUT_S)
    case.check("every line arrives after a killed worker and a killed broker", set(_lines(sink)), wanted)
    case.check("a connector is deleted", rest.ask("DELETE", "/connectors/lines-out")[0], 204)
    case.wait_until("a deleted connector is unknown", lambda: rest.ask("GET", "/connectors/lines-out")[0] == 404)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# MirrorMaker 2


def _run_mirror_maker(case: Case) -> None:
    classpath = _classpath(
        "mirror",
        f"org.apache.kafka:connect-mirror:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-mirror-client:{KAFKA_VERSION}",
    )
    with Kafka() as server:
        other = Case(server, case.folder)
        other.create_topic("orders", 3, retention_ms="123456789")
        case.create_topic("invoices", 2, cleanup_policy="compact")
        other.produce("orders", _orders())
        case.produce("invoices", _orders())
        settings: dict[str, object] = {
            "clusters": "here,there",
            "here.bootstrap.servers": case.bootstrap,
            "there.bootstrap.servers": other.bootstrap,
            "here->there.enabled": "true",
            "there->here.enabled": "true",
            "here->there.topics": "invoices",
            "there->here.topics": "orders",
            "dedicated.mode.enable.internal.rest": "false",
            "emit.checkpoints.interval.seconds": 1,
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": 1,
            "refresh.topics.interval.seconds": 2,
            "refresh.groups.interval.seconds": 2,
            "sync.topic.configs.interval.seconds": 2,
            "offset.lag.max": 0,
            **{f"{name}.replication.factor": 1 for name in MIRROR_TOPICS},
            "replication.factor": 1,
        }
        file = _properties(case.folder / "mirror.properties", settings)
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        command = [java_command(), HEAP, "-cp", classpath, main, file]
        first = case.start(command, "first")
        case.read("there.orders", lambda found: len(found) > ORDERS // 4)
        first.kill()
        case.start(command, "second")
        wanted = sorted(_orders())
        arrived = case.read("there.orders", lambda found: len(set(found)) >= ORDERS)
        case.check("Kafka's records arrive here across a kill of MirrorMaker", sorted(set(arrived)), wanted)
        left = other.read("here.invoices", lambda found: len(set(found)) >= ORDERS)
        case.check("records of here arrive at Kafka", sorted(set(left)), wanted)
        case.wait_until(
            "the topic's settings are copied",
            lambda: _setting(case, "there.orders", "retention.ms") == "123456789",
        )
        case.check("settings are copied to Kafka too", _setting(other, "here.invoices", "cleanup.policy"), "compact")


def _setting(case: Case, topic: str, name: str) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": case.bootstrap})
    entry = admin.describe_configs([resource])[resource].result(REST_TIMEOUT_S).get(name)
    return entry.value if entry is not None else None


# Kafka Streams


def _run_streams(case: Case, guarantee: str) -> None:
    classpath = _classpath(
        "streams",
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
        f"org.rocksdb:rocksdbjni:{ROCKSDB_VERSION}",
    )
    run([tool("javac"), "-cp", classpath, "-d", str(case.folder), str(PROGRAMS / "Totals.java")])
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)

    def start(name: str) -> Popen[bytes]:
        arguments = [case.bootstrap, guarantee, str(case.folder / name)]
        return case.start([java_command(), HEAP, "-cp", f"{case.folder}:{classpath}", "Totals", *arguments], name)

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


CONNECT = Product(
    "kafka-connect",
    KAFKA_VERSION,
    "two distributed workers, file source and sink, REST: a killed worker, a killed broker",
    _run_connect,
)
MIRROR_MAKER = Product(
    "mirrormaker-2",
    KAFKA_VERSION,
    "to and from an Apache Kafka: records and topic settings, across a kill of MirrorMaker",
    _run_mirror_maker,
)
STREAMS = tuple(
    Product(
        f"kafka-streams-{name}",
        KAFKA_VERSION,
        f"totals by key, {guarantee}, two instances with standbys: a killed instance, a killed broker",
        partial(_run_streams, guarantee=guarantee),
    )
    for name, guarantee in (("alos", "at_least_once"), ("eos", "exactly_once_v2"))
)
