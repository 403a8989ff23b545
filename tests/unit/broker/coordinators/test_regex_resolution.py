"""Which topics match the regular expressions of consumer groups."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from flowstone.broker.coordinators.regex_resolution import RegexResolution
from flowstone.coordinator.groups.consumer.regexes import ResolveRegexes
from flowstone.ports.clock import SimulatedClock

Found = dict[str, tuple[str, ...]] | None


async def _resolved(topics: Any, *regexes: str) -> Found:
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics=topics))
    done: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
    resolution = RegexResolution(metadata, SimulatedClock())
    resolution.begin(ResolveRegexes("g", regexes), lambda group_id, found: done.set_result(found))
    return await done


def test_a_topic_matches_if_its_whole_name_does() -> None:
    topics = ("orders", "orders-eu", "my-orders", "__internal")
    found = asyncio.run(_resolved(topics, "orders.*", "orders", ".*internal", "nothing"))
    assert found == {
        "orders.*": ("orders", "orders-eu"),
        "orders": ("orders",),
        ".*internal": ("__internal",),
        "nothing": (),
    }


def test_a_resolution_that_fails_says_so() -> None:
    assert asyncio.run(_resolved(None, "a")) is None
