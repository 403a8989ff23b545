"""A real schema registry for the long tests: Apicurio with Confluent's API, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.fetch_kafka import java_command
from scripts.fetch_registry import API_PATH, registry_jar

START_TIMEOUT_S = 120


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """Start the registry and yield the URL of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-Xmx512m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    with (directory / "registry.log").open("wb") as log:
        process = subprocess.Popen([java_command(), *options, "-jar", registry_jar()], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}{API_PATH}"
    try:
        _wait(process, f"{url}/subjects", directory / "registry.log")
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.5)
    raise AssertionError(f"the registry did not start: {log.read_text()[-2000:]}")
