"""How long an administrator's request waits for metadata that cannot be reached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.broker.topics.metadata_changes import CHANGE_TIMEOUT_MIN_MS, CHANGE_TIMEOUT_MS
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
)

TOPIC = 2


def create(timeout_ms: int) -> CreateTopicsRequest:
    wanted = CreateTopicsRequestTopic(name="new", num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[wanted], timeout_ms=timeout_ms)


def more_partitions(timeout_ms: int) -> CreatePartitionsRequest:
    wanted = CreatePartitionsRequestTopic(name="t", count=3, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=timeout_ms)


def delete(timeout_ms: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=["t"], timeout_ms=timeout_ms)


@pytest.mark.parametrize("make", [create, more_partitions, delete])
@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(5_000, 5_000), (0, CHANGE_TIMEOUT_MIN_MS)])
def test_a_request_waits_as_long_as_it_says(make_broker: Any, make: Any, timeout_ms: int, waits_ms: int) -> None:
    broker = make_broker()
    broker.create("t")
    with pytest.raises(ApiError) as refused:
        asyncio.run(ask_in_vain(broker, 2, make(timeout_ms), waits_ms))
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_a_request_that_does_not_say_how_long_waits_as_long_as_others_do(make_broker: Any) -> None:
    broker = make_broker()
    broker.create("t")
    config = AlterConfigsRequestConfig(name="retention.ms", value="10")
    resource = AlterConfigsRequestResource(resource_type=TOPIC, resource_name="t", configs=[config])
    with pytest.raises(ApiError) as refused:
        asyncio.run(ask_in_vain(broker, 1, AlterConfigsRequest(resources=[resource]), CHANGE_TIMEOUT_MS))
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_what_was_given_up_may_still_be_done(make_broker: Any) -> None:
    broker = make_broker()

    async def reached_again() -> None:
        answers = asyncio.Event()
        append = broker.log.append
        with pytest.raises(ApiError):
            await ask_in_vain(broker, 2, create(1_000), 1_000, answers)
        answers.set()
        while "new" not in broker.image.topics:
            await asyncio.sleep(0)
        broker.log.append = append

    asyncio.run(asyncio.wait_for(reached_again(), timeout=5))


async def ask_in_vain(
    broker: Any, version: int, request: Any, waits_ms: int, answers: asyncio.Event | None = None
) -> Any:
    """The answer, which must come exactly when its time is over: the log takes nothing before `answers`."""
    append, heard = broker.log.append, answers or asyncio.Event()

    async def append_when_reached(records: Any) -> None:
        await heard.wait()
        await append(records)

    broker.log.append = append_when_reached
    asking = asyncio.ensure_future(broker.ask(version, request))
    await turns()
    broker.services.clock.advance(waits_ms / 1000 - 0.001)
    await turns()
    assert not asking.done()
    broker.services.clock.advance(0.002)
    return await asyncio.wait_for(asking, timeout=5)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
