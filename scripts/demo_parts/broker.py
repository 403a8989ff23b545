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
START_TIMEOUT_S = STOP_TIMEOUT_S = 60
PAGE_TIMEOUT_S = 30
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
        self.address = self.http_address = ""
        overdue = threading.Timer(START_TIMEOUT_S, self._process.kill)
        overdue.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        finally:
            overdue.cancel()
        self.ready_s = time.perf_counter() - begun

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("http "):
                self.http_address = line.split()[1]
            if line.startswith("ready "):
                self.address = line.split()[1]
                return
        raise SystemExit(f"demo: the broker did not start in {START_TIMEOUT_S} s, or says why above")

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def stop(self) -> float:
        begun = time.perf_counter()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"demo: the broker did not stop in {STOP_TIMEOUT_S} s") from None
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
