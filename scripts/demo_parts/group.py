"""The consumer group of the demo: three members, one of which is killed and replaced without a loss.

Members are processes, `python -m scripts.demo_parts.group ADDRESS TOPIC`. Each prints what it has read
before it commits it, so the parent knows what a killed member had done. Lag comes from the broker's page.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from scripts.demo_parts.broker import SESSION_MS, client_config, look_at_group

GROUP = "demo-readers"
MEMBERS = 3
HEARTBEAT_MS = 300
CHUNK_RECORDS = 2000
CHUNK_WORK_S = 0.03
# By then the victim has processed a little, and most of its share is left.
CHUNKS_BEFORE_KILL = 5
TIMEOUT_S = 60
LOOK_S = 0.05


class Member:
    """One member process, and the offsets per partition that it says it has read."""

    def __init__(self, address: str, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "scripts.demo_parts.group", address, topic],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.read: dict[int, set[int]] = defaultdict(set)
        self.chunks = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Close the member's standard input, on which it leaves the group and ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # killed in the middle of a line: unreported records may be unprocessed
            for partition, first, end in json.loads(line):
                self.read[partition].update(range(first, end))
            self.chunks += 1

    def _end(self) -> None:
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Outcome:
    """The result, for display and for the verdict."""

    def __init__(self) -> None:
        self.lags: list[int] = []  # as observed, without the final zero
        self.shares: list[int] = []
        self.takeover_s = 0.0
        self.reason = ""
        self.missing = self.repeated = 0


def run_group(address: str, http_address: str, topic: str, ends: dict[int, int]) -> Outcome:
    """Let the group read everything below `ends`, and kill a member meanwhile."""
    outcome = Outcome()
    members = [Member(address, topic) for _ in range(MEMBERS)]
    try:
        _wait(lambda: _shares(_look(http_address, outcome)) == _fair(len(ends), MEMBERS))
        outcome.shares = _shares(_look(http_address, outcome))
        victim = members[0]
        _wait(lambda: victim.chunks >= CHUNKS_BEFORE_KILL)
        victim.kill()
        killed_s = time.perf_counter()
        _wait(lambda: _shares(_look(http_address, outcome)) == _fair(len(ends), MEMBERS - 1))
        outcome.takeover_s = time.perf_counter() - killed_s
        outcome.reason = _look(http_address, outcome)["rebalances"]["last_reason"]
        _wait(lambda: _is_done(_look(http_address, outcome), len(ends)))
    finally:
        for member in members[1:]:
            member.stop()
        members[0].kill()
    for partition, end in ends.items():
        reads = [member.read[partition] for member in members]
        outcome.missing += len(set(range(end)).difference(*reads))
        outcome.repeated += sum(map(len, reads)) - len(set().union(*reads))
    return outcome


def _look(http_address: str, outcome: Outcome) -> dict[str, Any]:
    group = look_at_group(http_address, GROUP)
    if group["lag"]:
        outcome.lags.append(group["lag"])
    return group


def _shares(group: dict[str, Any]) -> list[int]:
    """Return each member's number of partitions once the group is stable."""
    return sorted(len(member["partitions"]) for member in group["members"]) if group["state"] == "Stable" else []


def _fair(partitions: int, members: int) -> list[int]:
    return sorted(partitions // members + (index < partitions % members) for index in range(members))


def _is_done(group: dict[str, Any], partitions: int) -> bool:
    return [each["lag"] for each in group["partitions"]] == [0] * partitions


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + TIMEOUT_S
    while not condition():
        if time.perf_counter() > deadline:
            raise SystemExit(f"demo: the group did not get there in {TIMEOUT_S} s")
        time.sleep(LOOK_S)


def read_as_member(address: str, topic: str) -> None:
    """Read, print and commit, chunk by chunk, until standard input ends."""
    ending = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ending.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    consumer = Consumer(
        {
            **client_config(address),
            "group.id": GROUP,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while not ending.is_set():
        runs: list[list[int]] = []  # partition, first offset and the one after the last, without a gap
        for message in consumer.consume(CHUNK_RECORDS, 0.2):
            partition, offset = message.partition(), message.offset()
            if message.error() is not None or partition is None or offset is None:
                continue
            if not runs or runs[-1][0] != partition or runs[-1][2] != offset:
                runs.append([partition, offset, offset])
            runs[-1][2] = offset + 1
        if not runs:
            continue
        time.sleep(CHUNK_WORK_S)
        print(json.dumps(runs), flush=True)
        ends = {partition: end for partition, _first, end in runs}
        with suppress(KafkaException):  # a rebalance was faster: the new owner of the partition reads this again
            consumer.commit(offsets=[TopicPartition(topic, *each) for each in ends.items()], asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    read_as_member(*sys.argv[1:])
