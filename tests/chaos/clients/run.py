"""Other people's clients in transactions while brokers and the clients themselves are killed.

    python -m tests.chaos.clients.run [--faults 6] [NAME...]

For each client three brokers on loopback and a bank (`tests.chaos.bank`) whose tellers are programs of that client.
Leaders, coordinators of transactions and coordinators of groups are killed, paused and restarted in turn, and tellers
all the time. The exit status is 0 if there was no anomaly. A client that cannot be fetched is named, and not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from scripts.client_suites.franz_go import build
from scripts.client_suites.suite import FETCH_TIMEOUT_S, CheckFailed, Unavailable, run, tool
from scripts.fetch_kafka import FetchError, java_command, kafka_classpath

from tests.chaos.bank import ACCOUNTS_TOPIC, Bank
from tests.chaos.cluster import ChaosCluster, Node
from tests.chaos.history import Journal
from tests.chaos.network import Loopback
from tests.chaos.replicas import compare, read_copy
from tests.chaos.tellers import LIBRDKAFKA, Staff
from tests.faults.checker import Anomaly

HERE = Path(__file__).parent
SETTINGS = {"zookeeper.session.timeout.ms": "2000"}
IN_SYNC_S_MAX = 60.0
TRAFFIC_S = 5.0  # between two faults
PAUSE_S = 3.0  # longer than a session
HEAP = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PREY = (ACCOUNTS_TOPIC, "__transaction_state", "__consumer_offsets")
ANOMALIES_SHOWN = 20

# Builds what is needed in a directory, and returns the tellers.
Hire = Callable[[Path], Staff]


def hire_librdkafka(_: Path) -> Staff:
    return Staff(fixed=1, members=1, tellers=4, program=LIBRDKAFKA)


def hire_kafka_python(_: Path) -> Staff:
    return Staff(
        fixed=2, members=0, tellers=3, program=(sys.executable, "-m", "tests.chaos.clients.kafka_python_teller")
    )


def hire_aiokafka(_: Path) -> Staff:
    return Staff(fixed=2, members=0, tellers=3, program=(sys.executable, "-m", "tests.chaos.clients.aiokafka_teller"))


def hire_java(directory: Path) -> Staff:
    try:
        java, classpath = java_command(), kafka_classpath()
    except FetchError as error:
        raise Unavailable(str(error)) from error
    run(
        [tool("javac"), "-cp", classpath, "-d", str(directory), str(HERE / "JavaTeller.java")],
        timeout_s=FETCH_TIMEOUT_S,
    )
    return Staff(fixed=1, members=1, tellers=4, program=(java, *HEAP, "-cp", f"{directory}:{classpath}", "JavaTeller"))


def hire_franz_go(directory: Path) -> Staff:
    build(HERE / "franz_go_teller.go", directory)
    return Staff(fixed=0, members=2, tellers=3, program=(str(directory / "checks"),))


CLIENTS: Mapping[str, Hire] = {
    "confluent-kafka": hire_librdkafka,
    "kafka-python": hire_kafka_python,
    "aiokafka": hire_aiokafka,
    "java": hire_java,
    "franz-go": hire_franz_go,
}


class Outcome(NamedTuple):
    figures: Mapping[str, object]
    anomalies: Sequence[Anomaly]


def survive(staff: Staff, directory: Path, faults: int, seed: int = 1) -> Outcome:
    """Run a bank through so many faults, the prey and the kind of which take turns."""
    chance = random.Random(seed)
    anomalies: list[Anomaly] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(ChaosCluster(directory, Loopback(), settings=SETTINGS))
        journal = stack.enter_context(Journal(directory / "history.jsonl"))
        bank = Bank(cluster, journal, directory / "tellers.log", staff)
        stack.callback(bank.close)
        bank.check_going(time.monotonic(), "the start")
        turns = cycle([(topic, fault) for fault in (_kill, _pause_and_kill, _restart) for topic in PREY])
        for _, (topic, fault) in zip(range(faults), turns, strict=False):
            time.sleep(TRAFFIC_S)
            node = _leader(cluster, topic, chance)
            told = f"{fault.__name__.strip('_')} of {node.node_id}, which leads in {topic}"
            journal.write("fault", what=told)
            bank.strike()
            fault(node)
            bank.let_be()
            healed_s = time.monotonic()
            if not cluster.wait_in_sync(IN_SYNC_S_MAX):
                anomalies.append(Anomaly("never in sync", bank.accounts[0], -1, told))
            progress_s = bank.check_going(healed_s, told)
            print(f"  {told}: transactions after {progress_s:.1f} s", flush=True)
            if bank.anomalies:
                break
        bank.finish()
        cluster.wait_in_sync(IN_SYNC_S_MAX)
        cluster.stop()
        _check_disks(bank, cluster)
        anomalies += bank.anomalies + [Anomaly("broker", bank.accounts[0], -1, line) for line in cluster.faults()]
        return Outcome(bank.figures(), anomalies)


def _leader(cluster: ChaosCluster, topic: str, chance: random.Random) -> Node:
    """The broker that leads one of the topic's partitions."""
    leaders = [each.leader for partition, each in cluster.describe().items() if partition.topic == topic]
    return cluster.nodes[chance.choice([each for each in leaders if each in cluster.nodes] or list(cluster.nodes))]


def _kill(node: Node) -> None:
    node.kill()
    time.sleep(1.0)
    node.start()


def _pause_and_kill(node: Node) -> None:
    assert node.process is not None
    node.process.pause()
    time.sleep(PAUSE_S)
    node.kill()
    node.start()


def _restart(node: Node) -> None:
    assert node.terminate() == 0, "".join(node.output[-1:])
    node.start()


def _check_disks(bank: Bank, cluster: ChaosCluster) -> None:
    for partition in bank.partitions:
        copies = {node.node_id: read_copy(node.data, partition) for node in cluster.nodes.values()}
        bank.anomalies += compare(partition, copies)
        bank.check_disk(partition, copies[1])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.clients.run", description=__doc__)
    parser.add_argument("--faults", type=int, default=9, help="for each client (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; default: all")
    options = parser.parse_args(arguments)
    is_good = True
    for name in options.names or CLIENTS:
        directory = Path(tempfile.mkdtemp(prefix=f"flowstone-{name}-"))
        print(f"{name}: history and logs in {directory}", flush=True)
        try:
            (directory / "program").mkdir()
            staff = CLIENTS[name](directory / "program")
        except (Unavailable, CheckFailed) as error:
            print(f"{name} is not available: {error}")
            continue
        outcome = survive(staff, directory, options.faults, options.seed)
        print(json.dumps(outcome.figures), flush=True)
        for anomaly in outcome.anomalies[:ANOMALIES_SHOWN]:
            print(f"  {anomaly}")
        is_good = is_good and not outcome.anomalies
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
