"""Chaos on real processes: `python -m tests.chaos.run --faults 60` takes about 15 minutes, and needs Linux and root.

Three brokers, each with a network namespace and a file system of its own, a ZooKeeper, and librdkafka's clients, some
of which write in transactions and are killed themselves. One fault after the other, of nine classes; after each the
cluster has to be whole again. What happened is in `history.jsonl`; the report says what was found. The exit status is 0
only if there was no anomaly, recovery was quick enough, and there were enough transactions.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.broker_process import BrokerDied

from .arena import Arena
from .cluster import NODE_IDS, ChaosCluster
from .faults import CLASSES, schedule
from .network import Namespaces, become_private, why_no_namespaces

RECOVERY_P95_S_MAX = 15.0
RECORDS_PER_SECOND = 500
TRANSACTIONS_S_MAX = 60.0  # to wait for them after a fault
DISK_BYTES_MIN, DISK_BYTES_PER_FAULT = 512 << 20, 12 << 20
ANOMALIES_SHOWN = 20


class Recovery(NamedTuple):
    kind: str
    what: str
    recovery_s: float
    in_sync_s: float
    transactions_s: float  # until transactions are committed again
    silence_s: float  # the longest that a partition acknowledged nothing, from the fault's beginning on


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    reason = why_no_namespaces()
    if reason is not None:
        print(f"cannot run: {reason}", file=sys.stderr)
        return 2
    become_private("tests.chaos.run", arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # not without stopping what it started
    directory = Path(options.directory or tempfile.mkdtemp(prefix="flowstone-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"history and logs in {directory}", flush=True)
    return run(directory, options)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--transactions", type=int, default=200, help="wait for so many on average before the next fault (%(default)s)"
    )
    parser.add_argument("--classes", default=",".join(CLASSES), help="some of: %(default)s")
    parser.add_argument("--directory", help="where to leave history, logs and report (default: a temporary one)")
    return parser.parse_args(arguments)


def run(directory: Path, options: argparse.Namespace) -> int:
    chance = random.Random(options.seed)
    disk_bytes = DISK_BYTES_MIN + options.faults * DISK_BYTES_PER_FAULT
    started_s = time.monotonic()
    recoveries: list[Recovery] = []
    with (
        ChaosCluster(directory, Namespaces(NODE_IDS), disk_bytes=disk_bytes) as cluster,
        Arena(cluster, directory, RECORDS_PER_SECOND) as arena,
    ):
        try:
            for kind in schedule(options.faults, chance, options.classes.split(",")):
                recoveries.append(strike(arena, kind, chance, len(recoveries) + 1))
                if arena.all_anomalies:  # what follows would only bury it
                    print(*arena.all_anomalies, sep="\n", flush=True)
                    break
                arena.bank.wait_transactions(len(recoveries) * options.transactions, TRANSACTIONS_S_MAX)
            anomalies = arena.finish()
        except BrokerDied as death:
            print(f"a broker does not start:\n{death}", file=sys.stderr)
            return 1
        finally:
            for node in cluster.nodes.values():
                (directory / f"broker-{node.node_id}.log").write_text("\n".join(node.output))
        is_good = report(arena, recoveries, time.monotonic() - started_s, options, directory)
    for anomaly in anomalies[:ANOMALIES_SHOWN]:
        print(anomaly)
    return 0 if is_good and not anomalies else 1


def strike(arena: Arena, kind: str, chance: random.Random, number: int) -> Recovery:
    arena.journal.write("fault", number=number, kind=kind)
    struck_s = time.monotonic()
    arena.bank.strike()
    what = CLASSES[kind](arena.cluster, chance)
    arena.journal.write("healed", number=number, kind=kind, what=what)
    recovery_s, in_sync_s, transactions_s = arena.recover(time.monotonic(), what)
    silence_s = arena.safe.longest_silence_s(struck_s, time.monotonic())
    recovery = Recovery(kind, what, recovery_s, in_sync_s, transactions_s, silence_s)
    arena.journal.write("recovered", number=number, **recovery._asdict())
    told = f"silent for {silence_s:.2f} s, progress after {recovery_s:.2f} s, in sync after {in_sync_s:.2f} s"
    count = len(arena.bank.claims.committed)
    print(f"{number:4} {what}: {told}, {count} transactions", flush=True)
    return recovery


def report(
    arena: Arena, recoveries: Sequence[Recovery], took_s: float, options: argparse.Namespace, directory: Path
) -> bool:
    """Prints and keeps the figures; whether recovery was quick enough."""
    refused_commits = Counter[str]()
    for member in arena.members:
        refused_commits += member.errors
    figures = {
        "faults": len(recoveries),
        "seed": options.seed,
        "took_s": round(took_s, 1),
        "acknowledged": arena.acknowledged_count,
        "commits": arena.group.acknowledged_count,
        "transactions": arena.bank.figures(),
        "share_groups": arena.queues.figures(),
        "recovery_s": quantiles([each.recovery_s for each in recoveries]),
        "transactions_s": quantiles([each.transactions_s for each in recoveries]),
        "in_sync_s": quantiles([each.in_sync_s for each in recoveries]),
        "silence_s": quantiles([each.silence_s for each in recoveries]),
        "by_class": {
            kind: {
                "faults": len(own),
                "recovery_s": quantiles([each.recovery_s for each in own]),
                "silence_s": quantiles([each.silence_s for each in own]),
            }
            for kind in CLASSES
            if (own := [each for each in recoveries if each.kind == kind])
        },
        "acknowledged_without_offset": arena.safe.unplaced_count,
        "acks_1_lost": arena.lost_count,
        "sent_again_by_librdkafka": arena.sent_again_count,
        "refused_commits": dict(refused_commits),
        "failed_starts": sum(node.failed_starts for node in arena.cluster.nodes.values()),
        "anomalies": len(arena.all_anomalies),
    }
    print(json.dumps(figures, indent=2))
    (directory / "report.json").write_text(json.dumps(figures, indent=2))
    if len(arena.bank.claims.committed) < len(recoveries) * options.transactions:
        print(f"fewer than {options.transactions} transactions for each fault")
        return False
    return not recoveries or quantiles([each.recovery_s for each in recoveries])["p95"] <= RECOVERY_P95_S_MAX


def quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    at_95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered), 2), "p95": round(at_95, 2), "max": round(ordered[-1], 2)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
