"""The demo's broker: `flowstone up` as a process that is killed and restarted, and its page of groups."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from typing import Any

PARTITIONS = 4
SESSION_MS = 1500
PAGE_TIMEOUT_S = 30
WATCH_EVERY_S = 0.1
SETTINGS = {
    "num.partitions": PARTITIONS,
    # Short, so that the loss of a member is detected during the demo.
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
}


class BrokerProcess:
    """A `flowstone up` process with its data directory."""

    def __init__(self, data_directory: str, address: str) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "flowstone.cli", "up", "--data", data_directory, "--listen", address]
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        self._process = subprocess.Popen(
            [*command, "--http", "127.0.0.1:0", *settings, "--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self.http_address = ""
        for line in self._process.stdout:
            if line.startswith("http "):
                self.http_address = line.split()[1]
            if line.startswith("ready "):
                self.address = line.split()[1]
                break
        if not self.address:
            raise SystemExit("demo: the broker did not start; it says why above")
        self.ready_s = time.perf_counter() - begun

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def stop(self) -> float:
        begun = time.perf_counter()
        self._process.terminate()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def client_config(address: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 0}  # the broker is killed on purpose


def look_at_group(http_address: str, group_id: str) -> dict[str, Any]:
    """Return a group from the broker's page; an empty one if the broker does not know it yet."""
    connection = http.client.HTTPConnection(http_address, timeout=PAGE_TIMEOUT_S)
    connection.request("GET", f"/groups?group={group_id}")
    groups = json.loads(connection.getresponse().read())["groups"]
    connection.close()
    found: dict[str, Any] = groups[0] if groups else {"state": "Dead", "members": [], "partitions": [], "lag": 0}
    return found


class LagWatch:
    """A thread that reads a group's lag repeatedly until it is stopped."""

    def __init__(self, http_address: str, group_id: str) -> None:
        self._place = http_address, group_id
        self._seen: list[int] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> list[int]:
        """Stop and return each lag that was seen, in order; the last one is current."""
        self._ending.set()
        self._thread.join()
        self._look()
        return self._seen

    def _watch(self) -> None:
        while not self._ending.wait(WATCH_EVERY_S):
            self._look()

    def _look(self) -> None:
        group = look_at_group(*self._place)
        if group["partitions"] and self._seen[-1:] != [group["lag"]]:
            self._seen.append(group["lag"])
