"""Batches that a worker prepares: whose turn it is, and how much may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from flowstone.broker.loop.workers import Workers
from flowstone.broker.requests import batch_preparation
from flowstone.broker.requests.batch_preparation import Preparing
from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import Timestamps
from flowstone.log.partition.validation import INLINE_STORED_BYTES_MAX
from flowstone.ports.clock import SimulatedClock
from flowstone.types import Bytes
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, parse_header
from tests.support.partitions import a_partition

GZIP = TopicConfig(compression_type="gzip")


def run(scenario: Callable[[Preparing], Awaitable[None]]) -> None:
    async def body() -> None:
        workers = Workers(1)
        try:
            await scenario(Preparing(workers, SimulatedClock()))
        finally:
            workers.close()

    asyncio.run(body())


def a_batch(codec: Codec, key: bytes = b"k") -> bytes:
    return build_batch([Record(0, 0, key, b"v")], codec=codec)


def test_a_batch_that_needs_no_worker_waits_for_one_of_its_partition_that_does() -> None:
    async def scenario(preparing: Preparing) -> None:
        partition, other = a_partition(GZIP)[0], a_partition(GZIP)[0]
        ready = a_batch(Codec.GZIP)
        assert not preparing.is_due(partition, ready)
        converting = asyncio.ensure_future(preparing.append(partition, a_batch(Codec.NONE), lambda *_: None))
        await asyncio.sleep(0)
        assert preparing.is_due(partition, ready)
        assert not preparing.is_due(other, ready)
        await converting
        assert not preparing.is_due(partition, ready)

    run(scenario)


def test_a_batch_waits_for_a_large_one_of_its_partition() -> None:
    async def scenario(preparing: Preparing) -> None:
        partition = a_partition(TopicConfig())[0]
        large = build_batch([Record(0, 0, None, Random(1).randbytes(2 * INLINE_STORED_BYTES_MAX))], codec=Codec.GZIP)
        opening = asyncio.ensure_future(preparing.append(partition, large, lambda *_: None))
        await asyncio.sleep(0)
        assert preparing.is_due(partition, a_batch(Codec.NONE))
        await opening
        assert not preparing.is_due(partition, a_batch(Codec.NONE))

    run(scenario)


@pytest.mark.parametrize(
    ("config", "codec", "is_due"),
    [
        (TopicConfig(), Codec.NONE, False),
        (TopicConfig(), Codec.GZIP, False),
        (TopicConfig(cleanup_policy=("compact",), flowstone_validation="header"), Codec.NONE, False),
        (TopicConfig(cleanup_policy=("compact",), flowstone_validation="header"), Codec.GZIP, True),
        (GZIP, Codec.NONE, True),
    ],
)
def test_a_worker_is_needed_where_the_codec_changes_or_compressed_records_must_have_keys(
    config: TopicConfig, codec: Codec, is_due: bool
) -> None:
    async def scenario(preparing: Preparing) -> None:
        assert preparing.is_due(a_partition(config)[0], a_batch(codec)) is is_due

    run(scenario)


def test_batches_of_a_partition_are_appended_in_their_order_under_the_topics_codec() -> None:
    async def scenario(preparing: Preparing) -> None:
        partition = a_partition(GZIP)[0]
        appended: list[tuple[Codec, bool]] = []

        def append(batch: Bytes, timestamps: Timestamps | None, _: object) -> None:
            appended.append((parse_header(batch).codec, timestamps is not None))

        batches = [a_batch(codec) for codec in (Codec.NONE, Codec.GZIP, Codec.NONE)]
        await asyncio.gather(*(preparing.append(partition, batch, append) for batch in batches))
        assert appended == [(Codec.GZIP, True), (Codec.GZIP, False), (Codec.GZIP, True)]

    run(scenario)


def test_a_batch_that_comes_when_one_ends_waits_for_those_that_wait_already() -> None:
    async def scenario(preparing: Preparing) -> None:
        partition = a_partition(GZIP)[0]
        appended: list[int] = []
        later: list[asyncio.Future[None]] = []

        def end_of_the_first(*_: object) -> None:
            appended.append(1)

        first = asyncio.ensure_future(preparing.append(partition, a_batch(Codec.NONE), end_of_the_first))
        second = asyncio.ensure_future(preparing.append(partition, a_batch(Codec.NONE), lambda *_: appended.append(2)))
        first.add_done_callback(
            lambda _: later.append(
                asyncio.ensure_future(preparing.append(partition, a_batch(Codec.GZIP), lambda *_: appended.append(3)))
            )
        )
        await first
        assert preparing.is_due(partition, a_batch(Codec.GZIP))
        await second
        await asyncio.gather(*later)
        assert appended == [1, 2, 3]
        assert not preparing.is_due(partition, a_batch(Codec.GZIP))

    run(scenario)


def test_what_waits_is_limited_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(preparing: Preparing) -> None:
        monkeypatch.setattr(batch_preparation, "QUEUED_BYTES_MAX", 100)
        preparing.reserve(60)
        preparing.reserve(40)
        with pytest.raises(ApiError) as refused:
            preparing.reserve(1)
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        preparing.release(60)
        preparing.reserve(60)

    run(scenario)


def test_a_request_above_the_limit_is_prepared_when_it_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can never fit: a client that is told to try again would do so for ever."""

    async def scenario(preparing: Preparing) -> None:
        monkeypatch.setattr(batch_preparation, "QUEUED_BYTES_MAX", 100)
        preparing.reserve(150)
        with pytest.raises(ApiError):
            preparing.reserve(1)
        preparing.release(150)
        preparing.reserve(100)

    run(scenario)
