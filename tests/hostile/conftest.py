"""Brokers to attack, each in a process of its own. After every test the broker must live and have logged no fault."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.stretches import search
from tests.support.broker_process import BrokerProcess

from .bystander import Bystander

StartBroker = Callable[..., BrokerProcess]
OPEN_FILES_WANTED = 16_384


@pytest.fixture(scope="session", autouse=True)
def many_descriptors() -> None:
    """Floods need descriptors on this side too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES_WANTED:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, OPEN_FILES_WANTED), hard))


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "false"}
    with BrokerProcess(tmp_path_factory.mktemp("shared") / "data", settings=settings) as broker:
        yield broker
        assert broker.terminate() == 0


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The default settings, but for topics being made only when asked for. Shared: use topics of your own."""
    yield shared_broker
    assert shared_broker.is_running
    assert shared_broker.faults() == []


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Starts brokers with settings of the test's own, by Kafka's names."""
    started: list[BrokerProcess] = []

    def start(**settings: str) -> BrokerProcess:
        values = {name.replace("_", "."): value for name, value in settings.items()}
        started.append(BrokerProcess(tmp_path / f"data-{len(started)}", settings=values))
        return started[-1].wait_ready()

    yield start
    for broker in started:
        assert broker.is_running
        assert broker.faults() == []
        assert broker.terminate() == 0


_numbers = itertools.count()


@pytest.fixture
def bystander() -> Callable[..., AbstractContextManager[Bystander]]:
    """`with bystander(broker): attack()` fails if somebody well-behaved notices the attack."""

    def watch(broker: BrokerProcess, **options: float) -> Bystander:
        return Bystander(broker, f"bystander-{next(_numbers)}", **options)

    return watch


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    """A new topic of the shared broker."""
    name = f"topic-{next(_numbers)}"
    with broker.connect() as client:
        assert client.create_topic(name) == 0
    return name


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the longest stretches for which requests held the loop."""
    if not search.searched:
        return
    noted = search.report(search.searched)
    terminalreporter.section("stretches of the event loop")
    title = f"{len(search.searched)} searched, {len(noted)} of {search.NOTED_S * 1000:.0f} ms or more in any try"
    for line in (title, *noted):
        terminalreporter.write_line(line)
    if search.REPORT:
        with open(search.REPORT, "a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in search.searched)
