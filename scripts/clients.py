"""`make clients`: clients that nobody here wrote, and suites they were written with, against fresh brokers.

Each suite gets a broker process of its own, with an empty data directory, and ends in bounded time; with `--cluster`,
three brokers and a ZooKeeper, where every partition has three replicas and two must be in sync. The exit status
says whether every suite passed as many checks as it did when its floor was written: suites skip silently what a broker
does not advertise, so failures alone would not tell. A client that cannot be fetched is named, and below its floor.

    python scripts/clients.py [--cluster] [NAME...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.client_suites import (  # noqa: E402
    franz_go,
    franz_go_suite,
    java_groups,
    java_keys,
    java_tools,
    kafka_python_suite,
    kafkajs,
    kcat,
    rsyslog,
    spark_kafka,
)
from scripts.client_suites.suite import CheckFailed, Server, Suite, Unavailable, fresh_server  # noqa: E402

CLUSTER_BROKERS = 3


@dataclass(frozen=True)
class Entry:
    run: Callable[[Suite, Server], None]
    floor: int
    settings: tuple[str, ...] = ()
    # Installing it takes an administrator: where there is none, its absence is no failure.
    needs_root: bool = False


# kafka-python's tests assume its fixtures' broker: topics of four partitions, short sessions.
_AS_KAFKA_PYTHON_HAS_IT = ("num.partitions=4", "group.min.session.timeout.ms=1000")

SUITES = {
    "kcat": Entry(kcat.run_suite, floor=18, needs_root=True),
    "rsyslog": Entry(rsyslog.run_suite, floor=2, needs_root=True),
    "java-tools": Entry(java_tools.run_suite, floor=20),
    "java-groups": Entry(java_groups.run_suite, floor=15),
    "java-keys": Entry(java_keys.run_suite, floor=3),
    "kafkajs": Entry(kafkajs.run_suite, floor=21),
    "franz-go": Entry(franz_go.run_suite, floor=19),
    "franz-go-suite": Entry(franz_go_suite.run_suite, floor=284),
    "spark-kafka": Entry(spark_kafka.run_suite, floor=9),
    "kafka-python-4.3": Entry(kafka_python_suite.suite_for("4.3.0"), 43, _AS_KAFKA_PYTHON_HAS_IT),
    "kafka-python-3.9": Entry(kafka_python_suite.suite_for("3.9.0"), 40, _AS_KAFKA_PYTHON_HAS_IT),
    "kafka-python-2.8": Entry(kafka_python_suite.suite_for("2.8.0"), 40, _AS_KAFKA_PYTHON_HAS_IT),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", action="store_true", help="against three brokers instead of one")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)}; all of them without one")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    return run_suites(options.names or list(SUITES), CLUSTER_BROKERS if options.cluster else 1)


def run_suites(names: list[str], brokers: int) -> int:
    """The exit status."""
    below = []
    total = Suite("total")
    for name in names:
        suite, missing = _run(name, brokers)
        total.passed += suite.passed
        total.failed += suite.failed
        total.skipped += suite.skipped
        if not (missing and SUITES[name].needs_root) and suite.passed < SUITES[name].floor:
            below.append(f"{name}: {suite.passed} passed, {SUITES[name].floor} did when its floor was written")
    _print_counts(total)
    for line in below:
        print(f"below the floor: {line}")
    return 1 if below else 0


def _run(name: str, brokers: int) -> tuple[Suite, bool]:
    """The suite's account, and whether its client could not be had."""
    suite, entry, missing = Suite(name), SUITES[name], False
    started = time.monotonic()
    with fresh_server(*entry.settings, brokers=brokers) as server:
        try:
            entry.run(suite, server)
        except Unavailable as error:
            missing = True
            suite.skip(name, str(error))
        except (CheckFailed, subprocess.TimeoutExpired, OSError) as error:
            suite.fail("the suite", str(error))
    _print_counts(suite, f" in {time.monotonic() - started:.0f} s")
    for line in suite.failed:
        print(f"    failed   {line}")
    for line in suite.skipped:
        print(f"    skipped  {line}")
    return suite, missing


def _print_counts(suite: Suite, more: str = "") -> None:
    counts = f"{suite.passed:4} passed {len(suite.failed):3} failed {len(suite.skipped):3} skipped"
    print(f"{suite.name:18}{counts}{more}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
