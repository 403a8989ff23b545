"""franz-go, which uses the newest API versions: a program of our own, built with its modules from the cache."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from scripts.client_suites.suite import FETCH_TIMEOUT_S, Server, Suite, cached, run, tool

VERSION = "1.21.5"
ADMIN_VERSION = "1.16.0"
PROGRAM = Path(__file__).with_name("franz_go_checks.go")


def run_suite(suite: Suite, server: Server) -> None:
    with tempfile.TemporaryDirectory(prefix="flowstone-franz-go-") as work:
        folder = Path(work, "checks")
        build(PROGRAM, folder)
        suite.take_report(run([str(folder / "checks"), server.address]))


def build(program: Path, folder: Path) -> None:
    """Build a program that uses franz-go; the folder has it then under the name `checks`."""
    go = tool("go")
    module = cached(f"franz-go-{VERSION}", lambda folder: _fetch(go, folder))
    shutil.copytree(module, folder, dirs_exist_ok=True)
    shutil.copy(program, folder / "main.go")
    run([go, "build", "-mod=mod", "-o", "checks"], folder=folder, timeout_s=FETCH_TIMEOUT_S)


def _fetch(go: str, folder: Path) -> None:
    run([go, "mod", "init", "checks"], folder=folder)
    modules = [f"github.com/twmb/franz-go@v{VERSION}", f"github.com/twmb/franz-go/pkg/kadm@v{ADMIN_VERSION}"]
    run([go, "get", *modules], folder=folder, timeout_s=FETCH_TIMEOUT_S)
