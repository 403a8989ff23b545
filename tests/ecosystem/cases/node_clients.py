"""Clients in Node: kafkajs, whose members are killed, and static members of @platformatic/kafka that restart.

kafkajs can encode `group.instance.id`, but its consumer has no setting for it; so the static members are those
of another library.
"""

from __future__ import annotations

from collections.abc import Callable
from subprocess import Popen

from tests.ecosystem.cases.client_checks import check_client
from tests.ecosystem.installs import node_program
from tests.ecosystem.product import Case, Product

KAFKAJS_VERSION = "2.2.4"
PLATFORMATIC_VERSION = "1.35.0"
PARTITIONS, NUMBERS = 4, 2000
TOPIC, GROUP = "numbers", "static"
MEMBERS = ("left", "right")


def _run_kafkajs(case: Case) -> None:
    packages = [f"kafkajs@{KAFKAJS_VERSION}"]
    program = node_program(f"ecosystem-kafkajs-{KAFKAJS_VERSION}", "kafkajs.js", packages, case.folder)
    check_client(case, program, is_idempotent=True)


def _run_static_members(case: Case) -> None:
    packages = [f"@platformatic/kafka@{PLATFORMATIC_VERSION}"]
    program = node_program(f"ecosystem-platformatic-{PLATFORMATIC_VERSION}", "platformatic.mjs", packages, case.folder)
    case.create_topic(TOPIC, PARTITIONS)

    def start(member: str) -> Popen[bytes]:
        return case.start([*program, case.bootstrap, TOPIC, GROUP, member], member)

    def append(first: int) -> None:
        case.produce(TOPIC, [(str(number), str(number)) for number in range(first, first + NUMBERS)])

    started = {member: start(member) for member in MEMBERS}
    append(0)
    case.wait_until("each member reads", _has_read(case, set(range(NUMBERS))))
    owned = {member: _partitions(case, member) for member in MEMBERS}
    case.check("the partitions are divided", sorted(map(len, owned.values())), [PARTITIONS // 2, PARTITIONS // 2])
    started["left"].kill()
    started["left"].wait()
    append(NUMBERS)
    case.restart_broker()
    start("left")
    append(2 * NUMBERS)
    case.wait_until("all is read", _has_read(case, set(range(3 * NUMBERS))))
    found = {member: _partitions(case, member) for member in MEMBERS}
    case.check("a static member that restarts has the same partitions, and no other reads them", found, owned)


def _lines(case: Case, member: str) -> list[tuple[int, int]]:
    words = [line.split() for line in case.output(member).splitlines()]
    return [(int(line[0]), int(line[1])) for line in words if len(line) == 2 and all(map(str.isdigit, line))]


def _partitions(case: Case, member: str) -> set[int]:
    return {partition for partition, _ in _lines(case, member)}


def _has_read(case: Case, numbers: set[int]) -> Callable[[], bool]:
    return lambda: numbers <= {number for member in MEMBERS for _, number in _lines(case, member)}


KAFKAJS = Product(
    "kafkajs",
    "kafkajs",
    KAFKAJS_VERSION,
    "idempotent producer across a kill of the broker; a group whose member is killed",
    _run_kafkajs,
)
PLATFORMATIC = Product(
    "platformatic-kafka",
    "@platformatic/kafka",
    PLATFORMATIC_VERSION,
    "static members in Node: one is killed, the broker is killed, the member restarts with its partitions",
    _run_static_members,
)
