"""Stream processors and task queues in Python, each in an environment of its own; each loses a worker on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import Popen

from scripts.client_suites.suite import run

from tests.ecosystem.installs import PROGRAMS, python_of
from tests.ecosystem.product import Case, Product

ORDERS, CUSTOMERS = 4000, 20
NUMBERS = 1000
TASKS = 150
LONG_TASK = "50"
QUIX_VERSION, FASTSTREAM_VERSION, CELERY_VERSION, BYTEWAX_VERSION = "3.28.1", "0.7.8", "5.7.0", "0.21.1"
FAUST_VERSION = "0.15.3"


def _orders() -> list[tuple[str, str]]:
    return [(f"customer-{number % CUSTOMERS}", json.dumps({"amount": number})) for number in range(ORDERS)]


def _totals() -> dict[str, int]:
    totals: dict[str, int] = {}
    for number in range(ORDERS):
        customer = f"customer-{number % CUSTOMERS}"
        totals[customer] = totals.get(customer, 0) + number
    return totals


def _last_totals(records: list[tuple[str | None, str]]) -> dict[str | None, int]:
    return {key: json.loads(value)["total"] for key, value in records}


def _run_quix(case: Case) -> None:
    python = python_of(f"ecosystem-quix-{QUIX_VERSION}", f"quixstreams=={QUIX_VERSION}")
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)
    case.produce("orders", _orders()[: ORDERS // 2])
    command = [python, str(PROGRAMS / "quix_totals.py"), case.bootstrap, "orders", "totals"]
    first = case.start([*command, str(case.folder / "first")], "first")
    case.read("totals", lambda found: len(found) > ORDERS // 8)
    first.kill()
    case.produce("orders", _orders()[ORDERS // 2 :])
    # As on another machine: without the first one's state.
    look = case.supervise([*command, str(case.folder / "second")], "second")
    case.read("totals", lambda found: len(found) > ORDERS // 2)
    case.restart_broker()

    def is_enough(found: list[tuple[str | None, str]]) -> bool:
        look()
        return len(found) >= ORDERS

    records = case.read("totals", is_enough, committed=True)
    case.check("every total is right after a killed worker and a killed broker", _last_totals(records), _totals())
    case.check("each order was added once", len(records), ORDERS)


def _run_faststream(case: Case, backend: str) -> None:
    packages = f"faststream[kafka,confluent]=={FASTSTREAM_VERSION}"
    python = python_of(f"ecosystem-faststream-{FASTSTREAM_VERSION}", packages)
    case.create_topic("numbers", 2)
    case.create_topic("doubles", 2)
    program = str(PROGRAMS / "faststream_steps.py")

    def start(name: str) -> Popen[bytes]:
        return case.start([python, program, backend, case.bootstrap, "numbers", "doubles"], name)

    case.produce("numbers", [(None, str(number)) for number in range(NUMBERS // 2)])
    first = start("first")
    case.read("doubles", lambda found: len(found) > NUMBERS // 8)
    first.kill()
    case.restart_broker()
    start("second")
    case.produce("numbers", [(None, str(number)) for number in range(NUMBERS // 2, NUMBERS)])
    doubles = case.read_values("doubles", NUMBERS)
    wanted = {str(2 * number) for number in range(NUMBERS)}
    case.check("every number is doubled after a killed worker and a killed broker", set(doubles), wanted)


def _run_celery(case: Case) -> None:
    python = python_of(
        f"ecosystem-celery-{CELERY_VERSION}", f"celery=={CELERY_VERSION}", "kombu[confluentkafka]", "confluent-kafka"
    )
    done, program = case.folder / "done", PROGRAMS / "celery_tasks.py"
    variables = {
        "ECOSYSTEM_BROKER": f"confluentkafka://{case.bootstrap}",
        "ECOSYSTEM_FILE": str(done),
        "PYTHONPATH": str(program.parent),
    }
    run([python, str(program), str(TASKS)], folder=case.folder, variables=variables)

    def start(name: str) -> Popen[bytes]:
        options = ["--pool", "solo", "--concurrency", "1", "--loglevel", "INFO", "--without-gossip", "--without-mingle"]
        return case.start([python, "-m", "celery", "-A", "celery_tasks", "worker", *options], name, **variables)

    first = start("first")
    begun = Path(f"{done}.begun")
    case.wait_until("the long task runs", lambda: LONG_TASK in _numbers(begun))
    first.kill()
    first.wait()
    case.check(
        "the worker is killed in a task", (LONG_TASK in _numbers(begun), LONG_TASK in _numbers(done)), (True, False)
    )
    start("second")
    wanted = set(map(str, range(TASKS)))
    case.wait_until("all tasks have run", lambda: wanted <= set(_numbers(done)))
    case.check("every task ran, also that one", set(_numbers(done)), wanted)
    case.check("that task was begun twice", _numbers(begun).count(LONG_TASK), 2)


def _numbers(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _run_bytewax(case: Case) -> None:
    python = python_of(f"ecosystem-bytewax-{BYTEWAX_VERSION}", f"bytewax[kafka]=={BYTEWAX_VERSION}")
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)
    recovery = case.folder / "recovery"
    recovery.mkdir()
    run([python, "-m", "bytewax.recovery", str(recovery), "2"], folder=case.folder)
    variables = {"ECOSYSTEM_BROKER": case.bootstrap}
    command = [
        python,
        "-m",
        "bytewax.run",
        f"{PROGRAMS / 'bytewax_flow.py'}:flow",
        "-r",
        str(recovery),
        "-s",
        "1",
        "-b",
        "0",
    ]
    case.produce("orders", _orders()[: ORDERS // 2])
    first = case.start(command, "first", **variables)
    case.read("totals", lambda found: len(found) >= ORDERS // 2)
    first.kill()
    case.produce("orders", _orders()[ORDERS // 2 :])
    case.start(command, "second", **variables)
    totals = _totals()
    records = case.read("totals", lambda found: _last_totals(found) == totals)
    case.check("every total is right after a killed dataflow", _last_totals(records), totals)


def _run_faust(case: Case) -> None:
    python = python_of(f"ecosystem-faust-{FAUST_VERSION}", f"faust-streaming=={FAUST_VERSION}")
    case.create_topic("orders", 4)
    case.create_topic("totals", 4)
    command = [python, str(PROGRAMS / "faust_totals.py"), "worker", "-l", "info"]

    def start(name: str) -> Callable[[], None]:
        # Each as on another machine: the table comes back from its changelog.
        return case.supervise(command, name, ECOSYSTEM_BROKER=case.bootstrap, ECOSYSTEM_FOLDER=str(case.folder / name))

    case.produce("orders", _orders()[: ORDERS // 2])
    first = case.start(command, "first", ECOSYSTEM_BROKER=case.bootstrap, ECOSYSTEM_FOLDER=str(case.folder / "first"))
    case.read("totals", lambda found: len(found) > ORDERS // 8)
    first.kill()
    first.wait()
    case.produce("orders", _orders()[ORDERS // 2 :])
    look = start("second")
    case.read("totals", lambda found: len(found) > ORDERS // 2)
    case.restart_broker()
    wanted = _totals()

    def are_complete(found: list[tuple[str | None, str]]) -> bool:
        look()
        last = _last_totals(found)
        return all(last.get(customer, 0) >= total for customer, total in wanted.items())

    records = case.read("totals", are_complete)
    last = _last_totals(records)
    small = {customer: last.get(customer) for customer, total in wanted.items() if last.get(customer, 0) < total}
    case.check("no total is too small after a killed worker and a killed broker", small, {})


QUIX = Product(
    "quix-streams",
    "Quix Streams",
    QUIX_VERSION,
    "totals by key in state, exactly once: a killed worker whose state is restored elsewhere, a killed broker",
    _run_quix,
)
FASTSTREAM_CONFLUENT, FASTSTREAM_AIOKAFKA = (
    Product(
        f"faststream-{backend}",
        "FastStream",
        FASTSTREAM_VERSION,
        f"a service from topic to topic on its {backend} backend: a killed worker, a killed broker",
        partial(_run_faststream, backend=backend),
    )
    for backend in ("confluent", "aiokafka")
)
CELERY = Product(
    "celery", "Celery", CELERY_VERSION, "tasks through Kombu's Kafka transport; a worker killed in a task", _run_celery
)
BYTEWAX = Product("bytewax", "Bytewax", BYTEWAX_VERSION, "totals by key with recovery; a killed dataflow", _run_bytewax)
FAUST = Product(
    "faust",
    "Faust (faust-streaming)",
    FAUST_VERSION,
    "totals by key in a table with a changelog: a killed worker whose table is restored elsewhere, a killed broker",
    _run_faust,
)
