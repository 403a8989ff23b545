"""The pytest plugin: a broker for the session and a fresh topic for each test, without a line of configuration.

Every process of pytest-xdist has a session, and so a broker, of its own. The broker's modules are loaded when a test
first asks for one: a project that has Flowstone installed and does not use it pays for this file alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from flowstone.embedded import Broker

# Kafka's longest name is 249 characters; the rest is for the number.
TOPIC_NAME_CHARACTERS_MAX = 200
_numbers = count(1)


@pytest.fixture(scope="session")
def flowstone_settings() -> Mapping[str, object]:
    """The settings of `flowstone_broker`, by Kafka's names. Override it to have others."""
    return {}


@pytest.fixture(scope="session")
def flowstone_broker(flowstone_settings: Mapping[str, object]) -> Iterator[Broker]:
    """A broker in a thread, on a free port, in a temporary directory."""
    from flowstone.embedded import Broker

    with Broker(settings=flowstone_settings) as broker:
        yield broker


@pytest.fixture
def flowstone_topic(flowstone_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of an empty topic of one partition, or `num.partitions` if that is set, that no other test uses."""
    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:TOPIC_NAME_CHARACTERS_MAX]
    topic = f"{name}-{next(_numbers)}"
    flowstone_broker.create_topic(topic)
    return topic
