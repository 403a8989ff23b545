"""A controller that cannot write says so once, and tries on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from flowstone.broker.clustering.controller_role import RETRY_S, Controlling
from flowstone.cluster.image.cluster_image import BrokerImage
from flowstone.cluster.image.records import BrokerRegistered
from flowstone.cluster.logs.consensus import Member
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SimulatedClock

ME = Member(1, "life")


class Ensemble:
    """One member, and now and then no answer."""

    def __init__(self) -> None:
        self.members: Sequence[Member] = (ME,)
        self.problem = ""

    def on_members(self, listener: Callable[[], None]) -> None:
        pass

    async def look(self) -> Sequence[Member]:
        if self.problem:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, self.problem)
        return self.members


def test_a_controller_without_an_ensemble_reports_it_once_per_change(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        ensemble, metadata, clock = Ensemble(), Metadata(MemoryLog()), SimulatedClock()
        await metadata.append([BrokerRegistered(BrokerImage(1, None, {}, "life", 1))])
        controlling = Controlling(BrokerConfig(node_id=1), {}, cast(Any, ensemble), metadata, clock)

        async def try_for(seconds: int) -> None:
            for _ in range(seconds):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                clock.advance(RETRY_S)
                await asyncio.sleep(0)

        ensemble.problem = "ZooKeeper does not answer"
        controlling.start()
        await try_for(100)
        ensemble.problem = "ZooKeeper has no quorum"
        await try_for(100)
        ensemble.problem = ""
        await try_for(5)
        assert metadata.image.controller_id == 1
        controlling.close()

    asyncio.run(scenario())
    told = [record.message for record in caplog.records if record.name.endswith("controller_role")]
    assert [message.split(": ")[-1].split(".")[0] for message in told] == [
        "ZooKeeper does not answer",
        "ZooKeeper has no quorum",
        "the controller can write to the metadata log again",
    ]
