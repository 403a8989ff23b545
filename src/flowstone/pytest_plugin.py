"""The pytest plugin: a broker per session, an empty topic per test, and pipelines, without configuration.

Each process of pytest-xdist has its own session and broker. The broker's modules are imported when a test first uses
one: a project that has Flowstone installed but does not use it only pays for this file.

pytest rewrites the `assert` statements of every module of a distribution that has a plugin. For Flowstone's 300 modules
this takes several times as long as starting a broker, and the better messages help only Flowstone's developers. The
plugin therefore excludes Flowstone's modules from the rewriting.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from flowstone.embedded import Broker
    from flowstone.pipeline.operations.harness import PipelineUnderTest

# Kafka's longest name has 249 characters; the rest is for the number.
TOPIC_NAME_CHARACTERS_MAX = 200
_numbers = count(1)


class PlainImports:
    """An import finder that excludes the modules of one package from pytest's rewriting of assertions."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that Python finds for a module of the package, and None for any other module."""
        return PathFinder.find_spec(name, path, target) if name.startswith(self._prefix) else None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install the finder before pytest's own and before a conftest.py imports Flowstone."""
    finder = PlainImports(__name__.partition(".")[0])
    sys.meta_path.insert(0, finder)
    early_config.add_cleanup(lambda: sys.meta_path.remove(finder))


@pytest.fixture(scope="session")
def flowstone_settings() -> Mapping[str, object]:
    """The settings of `flowstone_broker`, by Kafka's names. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def flowstone_broker(flowstone_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker in a thread, on a free port, in a temporary directory."""
    from flowstone.embedded import Broker

    with Broker(settings=flowstone_settings) as broker:
        yield broker


@pytest.fixture
def flowstone_topic(flowstone_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of an empty topic for this test, with one partition or `num.partitions` if that is set."""
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:TOPIC_NAME_CHARACTERS_MAX]
    topic = f"{name}-{next(_numbers)}"
    flowstone_broker.create_topic(topic)
    return topic


@pytest.fixture(scope="session")
def flowstone_spark_settings() -> Mapping[str, str]:
    """Further settings of `flowstone_spark`. Override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def flowstone_spark(flowstone_spark_settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark session on this machine with the settings that pipelines need, for all tests of the process."""
    from flowstone.pipeline.engine.session import open_session
    from flowstone.pipeline.model import PipelineModel

    model = PipelineModel("tests", Path.cwd(), (), (), (), spark=flowstone_spark_settings)
    session = open_session(model, "local[2]", is_brief=True)
    yield session
    session.stop()


@pytest.fixture
def flowstone_pipeline(
    flowstone_settings: Mapping[str, object], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str | Path], PipelineUnderTest]]:
    """A function that loads the pipeline of a directory on a broker of its own; Spark starts when it is needed."""
    from flowstone.embedded import Broker
    from flowstone.pipeline.operations.harness import PipelineUnderTest

    brokers: list[Broker] = []

    def load(directory: str | Path) -> PipelineUnderTest:
        broker = Broker(settings=flowstone_settings)
        brokers.append(broker)
        scratch = tmp_path / f"flowstone-{len(brokers)}"
        return PipelineUnderTest(Path(directory), broker, scratch, lambda: request.getfixturevalue("flowstone_spark"))

    yield load
    for each in brokers:
        each.stop()
