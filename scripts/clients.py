"""`make clients`: runs clients of other projects, and their own test suites, against new brokers.

Each suite gets its own broker process with an empty data directory and ends in limited time. With `--cluster` it gets
three brokers and a ZooKeeper, with three replicas of every partition, two of which must be in sync. The exit status
says whether every suite passed at least its recorded minimum of checks. Failures alone would not show this, because
suites silently skip features that a broker does not advertise. A client that cannot be downloaded is named and counts
as below its minimum.

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
    java_settings,
    java_tools,
    kafka_python_suite,
    kafkajs,
    kcat,
    logins,
    rsyslog,
    spark_kafka,
    tool_comparison,
)
from scripts.client_suites.suite import CheckFailed, Server, Suite, Unavailable, fresh_server  # noqa: E402

CLUSTER_BROKERS = 3


@dataclass(frozen=True)
class Entry:
    run: Callable[[Suite, Server], None]
    floor: int
    # Checks that pass on a cluster, if different.
    cluster_floor: int | None = None
    settings: tuple[str, ...] = ()
    # Only for a single broker: those of a cluster are numbered from 1.
    node_id: int = 1
    # Installing it needs root: otherwise its absence is not a failure.
    needs_root: bool = False

    def floor_with(self, brokers: int) -> int:
        return self.floor if brokers == 1 or self.cluster_floor is None else self.cluster_floor

    def settings_with(self, brokers: int) -> tuple[str, ...]:
        return (*self.settings, f"node.id={self.node_id}") if brokers == 1 else self.settings


def _kafka_python(version: str, floor: int, cluster_floor: int) -> Entry:
    """Return the entry of kafka-python: its tests expect broker 0, topics of four partitions, short sessions.

    On a cluster, tests that expect exactly one broker are excluded.
    """
    settings = ("num.partitions=4", "group.min.session.timeout.ms=1000")
    return Entry(kafka_python_suite.suite_for(version), floor, cluster_floor, settings, node_id=0)


SUITES = {
    "kcat": Entry(kcat.run_suite, floor=18, needs_root=True),
    "rsyslog": Entry(rsyslog.run_suite, floor=2, needs_root=True),
    "java-tools": Entry(java_tools.run_suite, floor=20),
    "java-bin": Entry(
        tool_comparison.run_suite,
        floor=73,
        cluster_floor=0,
        settings=tuple(f"{name}={value}" for name, value in tool_comparison.SETTINGS.items()),
    ),
    "java-groups": Entry(java_groups.run_suite, floor=15),
    "java-settings": Entry(java_settings.run_suite, floor=3),
    "java-keys": Entry(java_keys.run_suite, floor=3),
    "kafkajs": Entry(kafkajs.run_suite, floor=21),
    "franz-go": Entry(franz_go.run_suite, floor=19),
    "franz-go-suite": Entry(franz_go_suite.run_suite, floor=290),
    "franz-go-logins": Entry(logins.run_franz_go, floor=9),
    "kafkajs-logins": Entry(logins.run_kafkajs, floor=8),
    "spark-kafka": Entry(spark_kafka.run_suite, floor=9),
    "kafka-python-4.3": _kafka_python("4.3.0", floor=51, cluster_floor=43),
    "kafka-python-3.9": _kafka_python("3.9.0", floor=43, cluster_floor=40),
    "kafka-python-2.8": _kafka_python("2.8.0", floor=43, cluster_floor=40),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", action="store_true", help="use three brokers instead of one")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)}; default: all")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    return run_suites(options.names or list(SUITES), CLUSTER_BROKERS if options.cluster else 1)


def run_suites(names: list[str], brokers: int) -> int:
    """Run the suites and return the exit status."""
    below = []
    total = Suite("total")
    for name in names:
        suite, missing = _run(name, brokers)
        total.passed += suite.passed
        total.failed += suite.failed
        total.skipped += suite.skipped
        floor = SUITES[name].floor_with(brokers)
        if not (missing and SUITES[name].needs_root) and suite.passed < floor:
            below.append(f"{name}: {suite.passed} passed, {floor} did when its floor was written")
    _print_counts(total)
    for line in below:
        print(f"below the floor: {line}")
    return 1 if below else 0


def _run(name: str, brokers: int) -> tuple[Suite, bool]:
    """Run a suite; return its results, and whether its client was missing."""
    suite, entry, missing = Suite(name), SUITES[name], False
    started = time.monotonic()
    with fresh_server(*entry.settings_with(brokers), brokers=brokers) as server:
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
