"""`python -m bench.queues`: consumes a topic with share groups, on Flowstone and on Apache Kafka in turns.

Kafka's own share consumer (its performance tool, one JVM with 1, 8 or 64 consumers) reads one partition from the
beginning and acknowledges in batches. Reported are records per second between the first and the last record, and the
broker's processor time per million records. Both brokers have their defaults and do not flush. The order of the brokers
alternates from round to round; the ratio is of medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from scripts.fetch_kafka import java_command, kafka_classpath

from bench.modes import FLOWSTONE, KAFKA, NOT_FLUSHED
from bench.queues.filling import fill
from bench.servers import Flowstone, Kafka, Server

CONSUMERS = (1, 8, 64)
RECORDS, ROUNDS = 1_000_000, 3
TOOL = "org.apache.kafka.tools.ShareConsumerPerformance"
CONFIG_TOOL = "kafka.admin.ConfigCommand"
TIMEOUT_SECONDS = 300
# Gates of throughput, at least, and of processor time, at most, as ratios of Flowstone's to Kafka's.
RATE_GATE, CPU_GATE = 1.2, 0.8
ONE_REPLICA = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class Round:
    """One consumption of the whole topic by a group of its own."""

    def __init__(self, server: Server, topic: str, group: str, consumers: int, records: int) -> None:
        begin_at_the_start(server, group)
        before = server.cpu_seconds()
        done = subprocess.run(
            [
                *(java_command(), "-Xmx1G", "-cp", kafka_classpath(), TOOL, "--bootstrap-server", server.address),
                *("--topic", topic, "--group", group, "--num-records", str(records), "--threads", str(consumers)),
                *("--timeout", "60000", "--hide-header"),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
        self.cpu_per_million = (server.cpu_seconds() - before) / records * 1_000_000
        self.rate = _rate(done.stdout)


def _rate(output: str) -> float:
    """Return the records per second that the tool reports in its last line."""
    lines = [line.split(",") for line in output.splitlines() if line.count(",") >= 5]
    if not lines:
        raise SystemExit(f"{TOOL} has no result: {output}")
    return float(lines[-1][4])


def begin_at_the_start(server: Server, group: str) -> None:
    alter = ("--alter", "--entity-type", "groups", "--entity-name", group)
    subprocess.run(
        [
            *(java_command(), "-cp", kafka_classpath(), CONFIG_TOOL, "--bootstrap-server", server.address),
            *(*alter, "--add-config", "share.auto.offset.reset=earliest"),
        ],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )


def measure(names: list[str], consumers: list[int], records: int, rounds: int) -> Mapping[tuple[str, int], list[Round]]:
    found: dict[tuple[str, int], list[Round]] = {}
    with ExitStack() as stack:
        kinds: dict[str, type[Server]] = {FLOWSTONE: Flowstone, KAFKA: Kafka}
        servers = {
            name: stack.enter_context(kinds[name]({**NOT_FLUSHED.settings[name], **ONE_REPLICA})) for name in names
        }
        for server in servers.values():
            fill(server.address, "queue", records)
        for count in consumers:
            for turn in range(rounds):
                for name in names if turn % 2 == 0 else names[::-1]:
                    result = Round(servers[name], "queue", f"g-{count}-{turn}", count, records)
                    found.setdefault((name, count), []).append(result)
                    print(
                        f"{name:10} {count:3} consumers: {result.rate:10,.0f} records/s, "
                        f"{result.cpu_per_million:6.2f} s per million",
                        flush=True,
                    )
    return found


def report(found: Mapping[tuple[str, int], list[Round]], consumers: list[int]) -> Iterator[str]:
    """Yield a line for each gate that is missed, and print the medians."""
    for count in consumers:
        if (FLOWSTONE, count) not in found or (KAFKA, count) not in found:
            continue
        ours, theirs = found[FLOWSTONE, count], found[KAFKA, count]
        rate = statistics.median(each.rate for each in ours) / statistics.median(each.rate for each in theirs)
        cpu = statistics.median(each.cpu_per_million for each in ours) / statistics.median(
            each.cpu_per_million for each in theirs
        )
        print(f"{count} consumers: {rate:.2f}x the rate (gate {RATE_GATE}), {cpu:.2f}x the CPU (gate {CPU_GATE})")
        if rate < RATE_GATE:
            yield f"{count} consumers: {rate:.2f}x the rate of Kafka"
        if cpu > CPU_GATE:
            yield f"{count} consumers: {cpu:.2f}x the processor time of Kafka"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=__doc__)
    parser.add_argument("--only", choices=(FLOWSTONE, KAFKA), help="measure one broker, without gates")
    parser.add_argument("--consumers", type=int, action="append", help="measure so many consumers; repeatable")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    names = [chosen.only] if chosen.only else [FLOWSTONE, KAFKA]
    consumers = chosen.consumers or list(CONSUMERS)
    missed = list(report(measure(names, consumers, chosen.records, chosen.rounds), consumers))
    for each in missed:
        print(f"missed: {each}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
