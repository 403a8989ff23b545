"""A broker's running copy: decisions see what is under way, readers only what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.cluster.decisions.partition_plans import NewTopic
from flowstone.cluster.decisions.registration import PRODUCER_ID_BLOCK_SIZE, register_broker
from flowstone.cluster.decisions.topic_changes import TopicResult, create_topics
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, Endpoint
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import ClusterCreated, ProducerIdsReserved
from flowstone.cluster.logs.file_log import FileLog
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.logs.metadata_copies import MetadataCopies
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles

BROKER = BrokerImage(1, None, {"PLAINTEXT": Endpoint("127.0.0.1", 9092)})


async def create(metadata: Metadata, *names: str) -> list[TopicResult]:
    topics = [NewTopic(name) for name in names]
    return await metadata.change(lambda image: create_topics(image, topics, BrokerConfig(), random_id))


def file_metadata(files: SimulatedFiles) -> Metadata:
    return Metadata(FileLog(MetadataCopies(files, ["/data"]), SimulatedClock()))


async def started(metadata: Metadata) -> Metadata:
    await metadata.change(lambda image: register_broker(image, BROKER, is_clean=True, new_id=random_id))
    return metadata


def test_two_requests_at_once_cannot_both_create_a_topic() -> None:
    async def run() -> None:
        metadata = await started(file_metadata(SimulatedFiles()))
        results = await asyncio.gather(create(metadata, "a"), create(metadata, "a"), create(metadata, "b"))
        assert [result[0].error for result in results] == [
            ErrorCode.NONE,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.NONE,
        ]
        await metadata.close()

    asyncio.run(run())


class RecordOfLevel2(ProducerIdsReserved):
    LEVELS = (2,)


def test_a_record_above_the_metadata_level_is_refused_before_anything_is_written() -> None:
    async def run() -> None:
        files = SimulatedFiles()
        metadata = await started(file_metadata(files))
        before = metadata.image
        with pytest.raises(ApiError, match=r"RecordOfLevel2 needs flowstone\.metadata\.version 2"):
            await metadata.change(lambda image: ([RecordOfLevel2(9)], None))
        assert metadata.image is before
        await create(metadata, "a")
        await metadata.close()
        assert "a" in file_metadata(files).image.topics

    asyncio.run(run())


def test_a_reader_sees_a_change_only_once_it_is_committed() -> None:
    async def run() -> None:
        metadata = await started(file_metadata(SimulatedFiles()))
        creation = asyncio.create_task(create(metadata, "a"))
        await asyncio.sleep(0)
        assert "a" not in metadata.image.topics
        await creation
        assert "a" in metadata.image.topics
        await metadata.close()

    asyncio.run(run())


def test_listeners_are_called_in_order_with_the_images_on_both_sides() -> None:
    async def run() -> None:
        metadata = await started(Metadata(MemoryLog()))
        seen: list[tuple[ClusterImage, ClusterImage]] = []
        metadata.on_change(lambda before, after, records: seen.append((before, after)))
        await create(metadata, "a")
        await create(metadata, "b")
        assert [sorted(after.topics) for _, after in seen] == [["a"], ["a", "b"]]
        assert seen[1][0] is seen[0][1]
        assert seen[1][1] is metadata.image

    asyncio.run(run())


def test_a_change_without_records_is_no_change() -> None:
    async def run() -> None:
        metadata = await started(Metadata(MemoryLog()))
        before = metadata.image
        assert (await create(metadata, ".."))[0].error == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert metadata.image is before

    asyncio.run(run())


def test_brokers_that_share_a_log_have_the_same_image() -> None:
    async def run() -> None:
        log = MemoryLog()
        first, second = Metadata(log), Metadata(log)
        await started(first)
        await create(first, "a")
        assert (await create(second, "a"))[0].error == ErrorCode.TOPIC_ALREADY_EXISTS
        await create(second, "b")
        assert first.image is second.image
        assert sorted(Metadata(log).image.topics) == ["a", "b"]

    asyncio.run(run())


def test_after_a_failed_flush_every_change_is_refused_and_reads_go_on() -> None:
    async def run() -> None:
        files = SimulatedFiles()
        metadata = await started(file_metadata(files))
        await create(metadata, "a")
        files.fail_next("sync")
        with pytest.raises(StorageFault):
            await create(metadata, "b")
        with pytest.raises(StorageFault):
            await create(metadata, "c")
        assert list(metadata.image.topics) == ["a"]
        await metadata.close()

    asyncio.run(run())


def test_producer_ids_are_never_given_twice_also_after_a_restart() -> None:
    async def run() -> None:
        files = SimulatedFiles()
        metadata = file_metadata(files)
        given = await asyncio.gather(*(metadata.next_producer_id() for _ in range(PRODUCER_ID_BLOCK_SIZE + 5)))
        assert given == list(range(PRODUCER_ID_BLOCK_SIZE + 5))
        await metadata.close()
        files.lose_power()
        metadata = file_metadata(files)
        assert await metadata.next_producer_id() == 2 * PRODUCER_ID_BLOCK_SIZE
        await metadata.close()

    asyncio.run(run())


def test_two_brokers_never_give_the_same_producer_id() -> None:
    async def run() -> None:
        log = MemoryLog()
        first, second = Metadata(log), Metadata(log)
        given = [await each.next_producer_id() for each in (first, second, first, second)]
        assert given == [0, PRODUCER_ID_BLOCK_SIZE, 1, PRODUCER_ID_BLOCK_SIZE + 1]

    asyncio.run(run())


def test_a_listener_that_fails_keeps_no_other_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        metadata = Metadata(MemoryLog())
        heard: list[int] = []

        def fail(*_: object) -> None:
            raise RuntimeError("cannot follow")

        metadata.on_change(fail)
        metadata.on_change(lambda before, after, records: heard.append(after.version))
        await metadata.append([ClusterCreated("cluster")])
        assert heard == [metadata.image.version]
        assert "a listener failed at metadata version" in caplog.text

    asyncio.run(body())


def test_a_log_in_memory_waits_for_running_appends_even_if_their_callers_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = 0
    wait = asyncio.wait

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        return await wait(*arguments, **options)

    async def run() -> None:
        on_the_way: list[Callable[[], None]] = []
        log = MemoryLog(deliver=on_the_way.append)
        metadata = Metadata(log)
        registering = asyncio.create_task(started(metadata))
        await asyncio.sleep(0)
        registering.cancel()
        closing = asyncio.create_task(metadata.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        assert waits == 1, "it turns round and round"
        while on_the_way:
            on_the_way.pop(0)()
        await asyncio.wait_for(closing, 5)
        assert 1 in metadata.image.brokers

    monkeypatch.setattr(asyncio, "wait", counted)
    asyncio.run(run())


def test_a_log_in_memory_takes_nothing_more_once_it_is_closed() -> None:
    async def body() -> None:
        log = MemoryLog()
        metadata = await started(Metadata(log))
        await create(metadata, "a")
        await log.close()
        with pytest.raises(StorageFault, match="closed"):
            await log.append([ClusterCreated(cluster_id="another")])

    asyncio.run(body())


def test_the_caller_of_a_change_is_answered_after_what_waits_for_it() -> None:
    async def run() -> None:
        metadata = await started(file_metadata(SimulatedFiles()))
        order: list[str] = []

        async def wait() -> None:
            await asyncio.sleep(0)
            order.append("waited")

        metadata.on_wait(wait)
        await create(metadata, "a")
        order.append("answered")
        assert order == ["waited", "answered"]
        await create(metadata, "a")  # nothing changes
        assert order == ["waited", "answered"]
        await metadata.close()

    asyncio.run(run())
