"""A broker with a known history, made once and copied, and the command line."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import SOURCE

from .filled_broker import FilledBroker
from .raw_client import RawClient

COMMAND_TIMEOUT_S = 30
FILL_BATCHES = 600


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> FilledBroker:
    broker = FilledBroker(tmp_path_factory.mktemp("template") / "data")
    with broker.start() as process, RawClient(process.bootstrap) as client:
        client.create_topic("orders", len(broker.partitions))
        broker.fill(client, FILL_BATCHES)
    return broker


@pytest.fixture
def filled(template: FilledBroker, tmp_path: Path) -> FilledBroker:
    """A copy of a data directory whose broker was killed after a fill of several segments a partition."""
    broker = FilledBroker(tmp_path / "data")
    shutil.copytree(template.data, broker.data)
    broker.history = copy.deepcopy(template.history)
    return broker


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a flowstone command to its end."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowstone.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run
