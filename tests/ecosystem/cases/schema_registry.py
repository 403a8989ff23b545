"""A schema registry that keeps its schemas in a topic of the broker, with confluent-kafka's Avro serializer on it."""

from __future__ import annotations

import json
import urllib.request
from subprocess import Popen
from typing import Any

from scripts.client_suites.suite import run
from scripts.fetch_kafka import java_command
from scripts.fetch_registry import API_PATH, registry_jar

from bench.servers import free_ports
from tests.ecosystem.installs import PROGRAMS, python_of
from tests.ecosystem.product import Case, Product

APICURIO_VERSION, CONFLUENT_KAFKA_VERSION = "3.0.9", "2.16.0"
ORDERS = 500
JOURNAL = "kafkasql-journal"
SUBJECT = "orders-value"
HTTP_TIMEOUT_S = 20


def _run_apicurio(case: Case) -> None:
    packages = f"confluent-kafka[avro,schemaregistry]=={CONFLUENT_KAFKA_VERSION}"
    python = python_of(f"ecosystem-avro-{CONFLUENT_KAFKA_VERSION}", packages)
    jar = str(registry_jar(APICURIO_VERSION))
    (port,) = free_ports(1)
    registry = f"http://127.0.0.1:{port}{API_PATH}"
    case.create_topic("orders", 2)

    def start(name: str) -> Popen[bytes]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port),
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": case.bootstrap,
        }
        options = [f"-D{key}={value}" for key, value in settings.items()]
        process = case.start([java_command(), "-Xmx512m", *options, "-jar", jar], name)
        case.wait_until("the registry answers", lambda: _ask(f"{registry}/subjects") is not None)
        return process

    def program(*arguments: str) -> str:
        return run([python, str(PROGRAMS / "avro_orders.py"), *arguments], folder=case.folder, timeout_s=120)

    first = start("first")
    program("produce", case.bootstrap, registry, "0", str(ORDERS), "plain")
    identifier = program("register", registry, "plain")
    first.kill()
    first.wait()
    case.restart_broker()
    second = start("second")
    case.check("a killed registry has the subject from its topic", _ask(f"{registry}/subjects"), [SUBJECT])
    case.check("the schema's id is the same", program("register", registry, "plain"), identifier)
    program("produce", case.bootstrap, registry, str(ORDERS), str(ORDERS), "noted")
    case.check("there are two versions", _ask(f"{registry}/subjects/{SUBJECT}/versions"), [1, 2])
    _ask(f"{registry}/config/{SUBJECT}", {"compatibility": "BACKWARD"})
    case.restart_broker()
    second.kill()
    second.wait()
    start("third")
    refused = program("register", registry, "other").strip()
    case.check("an incompatible schema is refused by a level that was set before a kill", refused, "status 409")
    orders = [json.loads(line) for line in program("consume", case.bootstrap, registry, str(2 * ORDERS)).splitlines()]
    wanted = {number: "none" if number < ORDERS else f"note {number}" for number in range(2 * ORDERS)}
    case.check("every order is read with its schema", {each["number"]: each["note"] for each in orders}, wanted)
    case.check(
        "the schemas are in a topic of the broker", len(case.read(JOURNAL, lambda found: len(found) > 2)) > 2, True
    )


def _ask(url: str, body: object = None) -> Any:
    """Return the answer, or None if there is none. With a body, it is put there."""
    data = None if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "PUT"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


APICURIO = Product(
    "apicurio-registry",
    "Apicurio Registry",
    APICURIO_VERSION,
    "schemas in a topic (kafkasql), confluent-kafka's Avro serializer: a registry killed twice, a broker killed twice",
    _run_apicurio,
)
