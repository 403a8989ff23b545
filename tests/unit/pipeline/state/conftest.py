"""A broker for the tests of the state, and pipelines that no other test uses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from flowstone.embedded import Broker
from flowstone.pipeline.state import StateStore

_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def pipeline() -> str:
    return f"shop-{next(_numbers)}"


@pytest.fixture
def store(broker: Broker, pipeline: str) -> Iterator[StateStore]:
    with StateStore(broker.bootstrap, pipeline) as store:
        yield store
