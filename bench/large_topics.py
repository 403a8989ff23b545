"""Five gigabytes in few and in many partitions: the time of a branch, and of a start after a clean stop and a kill.

    python -m bench.large_topics

A broker is filled and branches its topic at "now" several times while it serves. It is then stopped cleanly and
started, and killed after a few more writes and started, several times each. A start ends when every partition of the
topic answers. The page cache is kept, so the broker's work is measured and not the disk's. The broker's processor time
is shown too: on a busy machine it is the more reliable figure.

All data, 20 GB, is removed at the very end: for more than a minute after files were removed, ext4 scans their inodes
one by one whenever it creates a file. The cost of creating a file is measured first: 10 to 20 us if no files were
removed recently, and up to a millisecond, six times per partition of a branch, while other programs create and remove
thousands.
"""

from __future__ import annotations

import argparse
import compileall
import http.client
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import flowstone
from bench import topics, wire, workers
from bench.connection import Connection
from bench.servers import STOP_TIMEOUT_SECONDS, Flowstone, disk_folder, free_ports
from bench.workers import Load

SIZE_BYTES = 5_000_000_000
BRANCHED_PARTITIONS = (1, 20, 200)
STARTED_PARTITIONS = 1_000
VALUE_BYTES = 1_000
BATCH_BYTES = 250_000
ROUNDS = 5
MADE_FILES = 100
TOPIC = "large"
BRANCH_MS_MAX, CLEAN_START_S_MAX, UNCLEAN_START_S_MAX = 100.0, 1.0, 3.0
REQUEST_TIMEOUT_SECONDS = 60
RETRY_SECONDS = 0.002


class LargeFlowstone(Flowstone):
    """A broker with the HTTP page for branches and a sufficient limit on partitions."""

    def _prepare(self) -> list[str]:
        (self.http_port,) = free_ports(1)
        command = super()._prepare()
        command[command.index("--http") + 1] = f"127.0.0.1:{self.http_port}"
        return command

    def stop(self) -> None:
        """Stop the broker and keep its data."""
        if self._process is not None:
            self.kill()
            self._process = None

    def end_cleanly(self) -> None:
        """Stop the broker cleanly and keep its data."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_SECONDS)

    def cluster_id(self) -> str:
        lines = (self.data / "meta.properties").read_text().splitlines()
        return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))

    def branch(self, target: str) -> float:
        """Create a branch; return the time that the broker reports, in ms."""
        asked = {"cluster_id": self.cluster_id(), "source": TOPIC, "target": target, "time_ms": None, "groups": False}
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=REQUEST_TIMEOUT_SECONDS)
        try:
            connection.request("POST", "/branch", json.dumps(asked), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if answer.get("state") != "done":
            raise topics.RoundFailed(f"no branch: {answer}")
        return float(answer["took_ms"])


def append(connection: Connection, partitions: int, size_bytes: int, first_offset: int) -> int:
    """Write the same amount to all partitions; return the end offset of each."""
    batch = wire.record_batch(min(BATCH_BYTES, size_bytes // partitions), VALUE_BYTES, int(time.time() * 1000))
    load = Load(batch, size_bytes, acks=-1, connections=1, partitions=partitions)
    workers.produce(connection, load, TOPIC, range(partitions), first_offset)
    return first_offset + load.requests_per_connection // partitions * batch.records


class Taken(NamedTuple):
    """A duration and the broker's processor time for it, both in the unit of its limit."""

    time: float
    cpu: float


def making_us(folder: Path) -> float:
    """Return the processor time for creating a file; the files are kept."""
    before_s = time.process_time()
    for number in range(MADE_FILES):
        (folder / f"made{number}").touch()
    return (time.process_time() - before_s) / MADE_FILES * 1e6


def branches(partitions: int, size_bytes: int, folder: Path) -> list[Taken]:
    """Measure branches, each after a small write to every partition, so that every active segment must be sealed."""
    took_ms = []
    with LargeFlowstone(folder=folder) as broker, Connection(broker.address) as connection:
        topics.create(connection, TOPIC, partitions)
        end = append(connection, partitions, size_bytes, 0)
        for number in range(ROUNDS):
            before_s = broker.cpu_seconds()
            branched_ms = broker.branch(f"branch{number}")
            took_ms.append(Taken(branched_ms, (broker.cpu_seconds() - before_s) * 1000))
            end = append(connection, partitions, partitions * 2 * VALUE_BYTES, end)
    return took_ms


def starts(partitions: int, size_bytes: int, folder: Path) -> tuple[list[Taken], list[Taken]]:
    """Measure the seconds of starts after a clean stop and after a kill."""
    clean, killed = [], []
    with LargeFlowstone(folder=folder) as broker:
        with Connection(broker.address) as connection:
            topics.create(connection, TOPIC, partitions)
            end = append(connection, partitions, size_bytes, 0)
        for _ in range(ROUNDS):
            broker.end_cleanly()
            clean.append(start(broker, partitions))
            with Connection(broker.address) as connection:
                end = append(connection, partitions, partitions * 2 * VALUE_BYTES, end)
            broker.kill()
            killed.append(start(broker, partitions))
    return clean, killed


def start(broker: LargeFlowstone, partitions: int) -> Taken:
    begun = time.monotonic()
    broker.launch()
    asked = wire.list_offsets(TOPIC, range(partitions))
    while True:
        try:
            with Connection(broker.address) as connection:
                if wire.list_offsets_errors(connection.ask(asked)) == [0] * partitions:
                    return Taken(time.monotonic() - begun, broker.cpu_seconds())
        except topics.BROKER_TROUBLE:
            broker.check_running()
        if time.monotonic() - begun > REQUEST_TIMEOUT_SECONDS:
            raise topics.RoundFailed("the broker does not serve all partitions")
        time.sleep(RETRY_SECONDS)


def compile_bytecode() -> None:
    """Compile the bytecode, as an installation does; otherwise a start mainly measures Python's compiler."""
    compileall.compile_dir(Path(flowstone.__file__).parent, quiet=1)


def told(what: str, values: Sequence[Taken], most: float, unit: str) -> bool:
    """Print a line with the median; return whether it is within the limit."""
    took, cpu = median(each.time for each in values), median(each.cpu for each in values)
    verdict = "met" if took <= most else "MISSED"
    times = ", ".join(f"{each.time:.2f}" for each in values)
    print(f"{what}: {took:.2f} {unit} (at most {most:g}: {verdict}; {times}), processor {cpu:.2f} {unit}", flush=True)
    return took <= most


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=SIZE_BYTES // 1_000_000)
    parser.add_argument("--folder", type=Path, help="folder for the data (default: a temporary folder on a disk)")
    parser.add_argument("--only", choices=("branch", "start"))
    options = parser.parse_args(words)
    compile_bytecode()
    with tempfile.TemporaryDirectory(prefix="bench-large-", dir=options.folder or disk_folder()) as folder:
        return 0 if measured(Path(folder), options.mb * 1_000_000, options.only) else 1


def measured(folder: Path, size_bytes: int, only: str | None) -> bool:
    """Run the measurements; return whether everything was within its limit."""
    met = True
    print(f"making a file: {making_us(folder):.0f} us of processor time", flush=True)
    if only != "start":
        for count in BRANCHED_PARTITIONS:
            met &= told(f"branch at now, {count} partitions", branches(count, size_bytes, folder), BRANCH_MS_MAX, "ms")
    if only != "branch":
        clean, killed = starts(STARTED_PARTITIONS, size_bytes, folder)
        met &= told(f"start after a clean stop, {STARTED_PARTITIONS} partitions", clean, CLEAN_START_S_MAX, "s")
        met &= told(f"start after a kill, {STARTED_PARTITIONS} partitions", killed, UNCLEAN_START_S_MAX, "s")
    return met


if __name__ == "__main__":
    sys.exit(main())
