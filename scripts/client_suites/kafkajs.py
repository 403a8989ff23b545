"""kafkajs, the most used client for Node: old versions of every API, from a program of our own."""

from __future__ import annotations

from pathlib import Path

from scripts.client_suites.suite import FETCH_TIMEOUT_S, Server, Suite, cached, run, tool

VERSION = "2.2.4"
PROGRAM = Path(__file__).with_name("kafkajs_checks.js")


def run_suite(suite: Suite, server: Server) -> None:
    told = run(
        [tool("node"), str(PROGRAM), server.address],
        variables={"NODE_PATH": str(modules()), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
    )
    suite.take_report(told)


def modules() -> Path:
    """Return the folder with kafkajs as a module of Node."""
    npm = tool("npm")
    return cached(f"kafkajs-{VERSION}", lambda folder: _install(npm, folder)) / "node_modules"


def _install(npm: str, folder: Path) -> None:
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"kafkajs@{VERSION}"]
    run(command, folder=folder, timeout_s=FETCH_TIMEOUT_S)
