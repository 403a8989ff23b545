"""Kafka Connect of Apache Kafka's release: two distributed workers, of which one is killed."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from subprocess import Popen
from typing import Any

from scripts.fetch_kafka import KAFKA_VERSION, java_command

from bench.servers import free_ports
from tests.ecosystem.installs import kafka_with, properties_file
from tests.ecosystem.product import Case, Product

LINES = 2000
DOCUMENTS = [json.dumps({"number": number}) for number in range(1000)]
BROKEN_DOCUMENTS = [f"{{ no document {number}" for number in range(20)]
REST_TIMEOUT_S = 10
REBALANCE_TIMEOUT_S = 120
HEAP = "-Xmx256m"


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
    classpath = kafka_with("connect", f"org.apache.kafka:connect-file:{KAFKA_VERSION}")
    source, sink, strict = (case.folder / f"{name}.txt" for name in ("source", "sink", "strict"))
    ports = free_ports(2)
    rest = _Rest(ports)
    workers = [_start_worker(case, classpath, number, port) for number, port in enumerate(ports)]
    case.wait_until("Connect's workers answer", lambda: rest.ask("GET", "/connectors")[0] == 200)
    source.write_text("".join(f"line {number}\n" for number in range(LINES // 2)))
    case.create_topic("documents")
    case.produce("documents", [(None, each) for each in DOCUMENTS + BROKEN_DOCUMENTS])
    for name, settings in _connectors(source, sink, strict).items():
        status, _ = rest.ask("POST", "/connectors", {"name": name, "config": {"tasks.max": "1", **settings}})
        case.check(f"{name} is created", status, 201)
    case.wait_until("the connectors run", lambda: rest.are_running(3), REBALANCE_TIMEOUT_S)
    case.wait_until("the sink has the first lines", lambda: len(_lines(sink)) >= LINES // 2)

    def has_source_offset() -> bool:
        _, body = rest.ask("GET", "/connectors/lines-in/offsets")
        return bool(body and body["offsets"])

    case.wait_until("the source's offset is stored", has_source_offset)
    workers[0].kill()
    case.restart_broker()
    with source.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(LINES // 2, LINES))
    case.wait_until("the connectors run again", lambda: rest.are_running(3), REBALANCE_TIMEOUT_S)
    wanted = {f"line {number}" for number in range(LINES)}
    case.wait_until("the sink has all lines", lambda: set(_lines(sink)) == wanted, REBALANCE_TIMEOUT_S)
    case.check("every line arrives after a killed worker and a killed broker", set(_lines(sink)), wanted)
    _check_dead_letters(case, strict)
    _check_offsets(case, rest, sink)
    case.check("a connector is deleted", rest.ask("DELETE", "/connectors/lines-out")[0], 204)
    case.wait_until("a deleted connector is unknown", lambda: rest.ask("GET", "/connectors/lines-out")[0] == 404)


def _start_worker(case: Case, classpath: str, number: int, port: int) -> Popen[bytes]:
    converter = "org.apache.kafka.connect.storage.StringConverter"
    settings = {
        "bootstrap.servers": case.bootstrap,
        "group.id": "connect",
        "listeners": f"http://127.0.0.1:{port}",
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
    file = properties_file(case.folder / f"worker-{number}.properties", settings)
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    return case.start([java_command(), HEAP, "-cp", classpath, main, file], f"worker-{number}")


def _connectors(source: Path, sink: Path, strict: Path) -> dict[str, dict[str, str]]:
    """Return connectors from a file to a topic, from there to a file, and one whose bad records are dead letters."""
    package = "org.apache.kafka.connect.file"
    to_file = {
        "connector.class": f"{package}.FileStreamSinkConnector",
        "consumer.override.auto.offset.reset": "earliest",
    }
    return {
        "lines-in": {"connector.class": f"{package}.FileStreamSourceConnector", "file": str(source), "topic": "lines"},
        "lines-out": to_file | {"file": str(sink), "topics": "lines"},
        "documents-out": to_file
        | {
            "file": str(strict),
            "topics": "documents",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "dead-documents",
            "errors.deadletterqueue.topic.replication.factor": "1",
            "errors.deadletterqueue.context.headers.enable": "true",
        },
    }


def _check_dead_letters(case: Case, strict: Path) -> None:
    letters = set(case.read_values("dead-documents", len(BROKEN_DOCUMENTS)))
    case.check("what is no document is a dead letter", letters, set(BROKEN_DOCUMENTS))
    wanted = {f"{{number={number}}}" for number in range(len(DOCUMENTS))}
    case.wait_until("the strict sink has all documents", lambda: set(_lines(strict)) == wanted)
    case.check("the strict sink has every document", set(_lines(strict)), wanted)


def _check_offsets(case: Case, rest: _Rest, sink: Path) -> None:
    """Check that a connector's offsets can be seen, set while it is stopped, and deleted."""
    path = "/connectors/lines-out"

    def offsets() -> list[Any]:
        return (rest.ask("GET", f"{path}/offsets")[1] or {"offsets": []})["offsets"]

    def at(offset: int) -> list[Any]:
        return [{"partition": {"kafka_partition": 0, "kafka_topic": "lines"}, "offset": {"kafka_offset": offset}}]

    end = case.end_offset("lines")
    case.wait_until("the sink's offset is at the end", lambda: offsets() == at(end))
    again = 10
    case.check("a connector is stopped", rest.ask("PUT", f"{path}/stop")[0], 204)
    changed = {"offsets": at(end - again)}
    case.wait_until("the offset is set", lambda: rest.ask("PATCH", f"{path}/offsets", changed)[0] == 200)
    case.check("the offset that was set is told", offsets(), at(end - again))
    before = len(_lines(sink))
    case.check("a connector is resumed", rest.ask("PUT", f"{path}/resume")[0], 202)
    case.wait_until("lines come again", lambda: len(_lines(sink)) >= before + again)
    case.check(
        "exactly the lines after that offset come again", _lines(sink)[before:], _lines(sink)[before - again : before]
    )
    case.check("a connector is stopped again", rest.ask("PUT", f"{path}/stop")[0], 204)
    case.wait_until("the offsets are deleted", lambda: rest.ask("DELETE", f"{path}/offsets")[0] == 200)
    case.check("no offset is left", offsets(), [])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


CONNECT = Product(
    "kafka-connect",
    "Kafka Connect",
    KAFKA_VERSION,
    "two distributed workers, file source and sink, dead letters, REST with offsets: a killed worker, a killed broker",
    _run_connect,
)
