"""What every client library is asked: a producer across a kill of the broker, and a group that loses a member.

A program of ours uses the library: `produce BROKER TOPIC COUNT` prints each acknowledged number of records, `consume
BROKER TOPIC 0 GROUP` each value that it reads.
"""

from __future__ import annotations

from collections import Counter

from tests.ecosystem.product import Case

COUNT = 5000
PARTITIONS = 4
TOPIC, GROUP = "numbers", "readers"
KILL_BROKER_AFTER = 1500
WANTED = {str(number) for number in range(COUNT)}


def check_client(case: Case, program: list[str], *, is_idempotent: bool) -> None:
    case.create_topic(TOPIC, PARTITIONS)
    producer = case.start([*program, "produce", case.bootstrap, TOPIC, str(COUNT)], "producer")
    case.wait_until("the producer has written a part", lambda: f"\n{KILL_BROKER_AFTER}\n" in case.output("producer"))
    case.restart_broker()
    case.check("the producer ends well across a kill of the broker", producer.wait(120), 0)
    stored = check_stored(case, is_idempotent=is_idempotent)
    check_group(case, [*program, "consume", case.bootstrap, TOPIC, "0", GROUP], stored)


def check_stored(case: Case, *, is_idempotent: bool) -> Counter[str]:
    """Check the topic's values; return how often each is stored."""
    stored = case.read_values(TOPIC, COUNT)
    case.check("every record is stored", set(stored), WANTED)
    if is_idempotent:
        case.check("no record is stored twice", [each for each, times in stored.items() if times > 1], [])
    return stored


def check_group(case: Case, consume: list[str], stored: Counter[str]) -> None:
    """Check that a second member reads what a killed one has not committed, and nothing else."""
    first = case.start(consume, "first")
    case.wait_until("the first member commits", lambda: case.committed(GROUP, TOPIC, PARTITIONS) > 0)
    first.kill()
    first.wait()
    committed = case.committed(GROUP, TOPIC, PARTITIONS)
    case.start(consume, "second")

    def seen() -> set[str]:
        return {*case.output("first").split(), *case.output("second").split()}

    case.wait_until("the members have read all records", lambda: seen() >= WANTED)
    is_exact = len(case.output("second").split()) <= sum(stored.values()) - committed
    case.check("the second member reads nothing that the first has committed", is_exact, True)
