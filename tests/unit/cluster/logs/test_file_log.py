"""The metadata file: what is acknowledged survives, what was cut short goes, what is damaged is not overlooked."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage
from flowstone.cluster.image.records import (
    ClusterCreated,
    MetadataRecord,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from flowstone.cluster.logs.file_log import FileLog
from flowstone.cluster.logs.metadata_copies import DIRECTORY, FILE_NAME, MetadataCopies
from flowstone.cluster.metadata import Metadata
from flowstone.errors import ErrorCode, StartupError, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import SystemFiles
from tests.support.newer_record import NewerRecord

PATH = f"/data/{DIRECTORY}/{FILE_NAME}"


def open_log(files: Any, **options: Any) -> FileLog:
    return FileLog(MetadataCopies(files, ["/data"]), SimulatedClock(), **options)


def topic(number: int) -> TopicCreated:
    partition = PartitionImage(1, 0, 0, (1,), (1,))
    return TopicCreated(f"topic-{number}", number.to_bytes(16, "big"), (partition,), {})


def with_log(log: FileLog, use: Callable[[FileLog], Coroutine[Any, Any, None]]) -> ClusterImage:
    """Loads the log, uses it, closes it; the image as loaded."""

    async def run() -> ClusterImage:
        image = log.load()
        try:
            await use(log)
        finally:
            await log.close()
        return image

    return asyncio.run(run())


def write(files: Any, *appends: Sequence[MetadataRecord], **options: Any) -> None:
    async def append_all(log: FileLog) -> None:
        for records in appends:
            await log.append(records)

    with_log(open_log(files, **options), append_all)


def load(files: Any) -> ClusterImage:
    async def nothing(log: FileLog) -> None:
        pass

    return with_log(open_log(files), nothing)


def test_a_new_log_is_empty() -> None:
    assert load(SimulatedFiles()) == ClusterImage()


def test_what_was_appended_survives_a_power_loss() -> None:
    files = SimulatedFiles()
    write(files, [ClusterCreated("c"), topic(1)], [topic(2)])
    files.lose_power()
    image = load(files)
    assert sorted(image.topics) == ["topic-1", "topic-2"]
    assert image.cluster_id == "c"
    assert image.version == 2


def test_what_a_killed_broker_wrote_and_did_not_sync_is_durable_once_it_is_loaded() -> None:
    files = SimulatedFiles()
    write(files, [ClusterCreated("c")])
    files.fail_next("sync", after=1)
    with pytest.raises(StorageFault):
        write(files, [topic(1)])
    assert "topic-1" in load(files).topics
    files.lose_power()
    assert "topic-1" in load(files).topics


def test_the_log_works_on_real_files(tmp_path: Path) -> None:
    async def append(log: FileLog) -> None:
        await log.append([topic(1)])
        await log.append([topic(2)])

    with_log(FileLog(MetadataCopies(SystemFiles(), [str(tmp_path)]), SimulatedClock()), append)
    image = with_log(FileLog(MetadataCopies(SystemFiles(), [str(tmp_path)]), SimulatedClock()), append_topic_3)
    assert sorted(image.topics) == ["topic-1", "topic-2"]
    assert (
        sorted(FileLog(MetadataCopies(SystemFiles(), [str(tmp_path)]), SimulatedClock()).load().topics)[-1] == "topic-3"
    )


async def append_topic_3(log: FileLog) -> None:
    await log.append([topic(3)])


def test_an_unfinished_write_is_cut_off_at_every_length_and_the_log_continues() -> None:
    files = SimulatedFiles()
    write(files, [topic(1)])
    whole = files.size(PATH)
    write(files, [topic(2), topic(3)])
    data = files.read(PATH)
    for length in range(whole, len(data)):
        files.replace(PATH, data[:length])
        image = load(files)
        assert list(image.topics) == ["topic-1"]
        assert files.size(PATH) == whole
    write(files, [topic(4)])
    assert list(load(files).topics) == ["topic-1", "topic-4"]


def test_the_cut_is_durable_before_anything_is_appended_after_it() -> None:
    files = SimulatedFiles()
    write(files, [topic(1)])
    whole = files.size(PATH)
    files.replace(PATH, files.read(PATH) + b"torn")
    load(files)
    files.lose_power()
    assert files.size(PATH) == whole


def test_a_last_batch_whose_bytes_did_not_all_reach_the_disk_is_cut_off() -> None:
    files = SimulatedFiles()
    write(files, [topic(1)], [topic(2)])
    data = files.read(PATH)
    files.replace(PATH, data[:-20] + bytes(20))
    assert list(load(files).topics) == ["topic-1"]


def test_damage_before_the_last_batch_refuses_to_start_wherever_it_is() -> None:
    files = SimulatedFiles()
    write(files, [topic(1)], [topic(2)])
    data = files.read(PATH)
    first_bytes = 12 + int.from_bytes(data[8:12], "big")
    # Bytes 0-7 of the first batch are its offset, 12-15 its leader epoch: no checksum covers them.
    for position in (*range(8, 12), *range(16, first_bytes)):
        files.replace(PATH, data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        with pytest.raises(StartupError, match=r"damaged at byte 0, yet whole again at byte \d+"):
            open_log(files).load()
        assert files.size(PATH) == len(data)


def test_a_batch_at_the_wrong_offset_refuses_to_start() -> None:
    files = SimulatedFiles()
    write(files, [topic(1)])
    first_bytes = files.size(PATH)
    write(files, [topic(2)])
    data = bytearray(files.read(PATH))
    data[first_bytes + 7] ^= 0x04
    files.replace(PATH, bytes(data))
    with pytest.raises(StartupError, match=f"offset 5 at byte {first_bytes}, where 1 should be"):
        open_log(files).load()


def test_a_record_of_a_newer_release_refuses_to_start_and_leaves_every_copy_as_it_is() -> None:
    files = SimulatedFiles()
    copies = ["/data", "/other"]
    write_newer = FileLog(MetadataCopies(files, copies), SimulatedClock())

    async def append(log: FileLog) -> None:
        await log.append([topic(1)])
        await log.append([NewerRecord()])

    with_log(write_newer, append)
    before = [files.read(f"{each}/{DIRECTORY}/{FILE_NAME}") for each in copies]
    # One of the copies has not heard of it: it must not be taken for the one that counts.
    files.replace(f"/other/{DIRECTORY}/{FILE_NAME}", before[0][:1])
    with pytest.raises(StartupError, match=r"unknown type 'NewerRecord'.*a newer release wrote it"):
        FileLog(MetadataCopies(files, copies), SimulatedClock()).load()
    assert files.read(PATH) == before[0]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_fails_the_log_for_good(operation: str) -> None:
    files = SimulatedFiles()

    async def fail(log: FileLog) -> None:
        seen: list[Sequence[MetadataRecord]] = []
        log.listeners.on_commit(lambda records, image: seen.append(records))
        await log.append([topic(1)])
        files.fail_next(operation)
        with pytest.raises(StorageFault, match=f"simulated {operation} failure"):
            await log.append([topic(2)])
        with pytest.raises(StorageFault, match="takes no more changes"):
            await log.append([topic(3)])
        assert seen == [[topic(1)]]

    with_log(open_log(files), fail)


def test_all_waiting_appends_fail_when_the_disk_fails() -> None:
    files = SimulatedFiles()

    async def fail(log: FileLog) -> None:
        files.fail_next("sync")
        outcomes = await asyncio.gather(*(log.append([topic(n)]) for n in range(5)), return_exceptions=True)
        assert all(isinstance(outcome, StorageFault) for outcome in outcomes)

    with_log(open_log(files), fail)


def test_a_listener_that_fails_breaks_neither_the_log_nor_the_listeners_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    followed: list[int] = []

    def stumble(records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        raise KeyError("a mistake")

    async def append(log: FileLog) -> None:
        log.listeners.on_commit(stumble)
        log.listeners.on_commit(lambda records, image: followed.append(image.version))
        await asyncio.gather(log.append([topic(1)]), log.append([topic(2)]))
        await log.append([topic(3)])

    files = SimulatedFiles()
    with_log(open_log(files), append)
    assert followed == [0, 1, 2]
    assert list(load(files).topics) == ["topic-1", "topic-2", "topic-3"]
    assert "a mistake" in caplog.text


def test_appends_that_arrive_together_share_a_batch_and_keep_their_order() -> None:
    files = SimulatedFiles()

    async def append(log: FileLog) -> None:
        seen: list[Sequence[MetadataRecord]] = []
        versions: list[int] = []
        log.listeners.on_commit(lambda records, image: (seen.append(records), versions.append(image.version)))
        appends = [[topic(n)] for n in range(50)]
        await asyncio.gather(*(log.append(records) for records in appends))
        assert all(ours is theirs for ours, theirs in zip(appends, seen, strict=True))
        assert versions == list(range(50))

    with_log(open_log(files), append)
    data = files.read(PATH)
    batches, position = 0, 0
    while position < len(data):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        batches += 1
    assert batches == 1
    assert list(load(files).topics) == [f"topic-{n}" for n in range(50)]


def test_an_append_whose_caller_gives_up_still_takes_place() -> None:
    files = SimulatedFiles()

    async def give_up(log: FileLog) -> None:
        task = asyncio.create_task(log.append([topic(1)]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await log.append([topic(2)])

    with_log(open_log(files), give_up)
    assert list(load(files).topics) == ["topic-1", "topic-2"]


def test_an_overgrown_file_is_replaced_by_its_snapshot_and_offsets_go_on() -> None:
    files = SimulatedFiles()
    steps: list[list[MetadataRecord]] = [[topic(1)]]
    for n in range(200):
        steps += [[topic(2)], [TopicDeleted(topic(2).topic_id)], [ProducerIdsReserved(n)]]
    write(files, *steps, compaction_min_bytes=4096)
    assert files.size(PATH) < 8192
    files.lose_power()
    image = load(files)
    assert image.version == len(steps) - 1
    assert list(image.topics) == ["topic-1"]
    assert image.next_producer_id == 199
    write(files, [topic(3)])
    assert load(files).version == len(steps)


def test_a_power_loss_during_compaction_leaves_the_old_or_the_new_file() -> None:
    files = SimulatedFiles()

    async def grow(log: FileLog) -> None:
        files.fail_next("rename")
        for n in range(3):
            await log.append([topic(n)])
        await log.append([topic(9)])

    with pytest.raises(StorageFault, match="simulated rename failure"):
        with_log(open_log(files, compaction_min_bytes=300), grow)
    files.lose_power()
    assert list(load(files).topics) in (["topic-0", "topic-1"], ["topic-0", "topic-1", "topic-2"])


def test_a_change_on_a_full_disk_is_undone_and_the_next_is_taken() -> None:
    files = SimulatedFiles()
    files.make_directory("/data")
    metadata_images: list[ClusterImage] = []

    async def use(log: FileLog) -> None:
        metadata = Metadata(log)
        await metadata.append([ClusterCreated("c")])
        files.fail_next("write", errno.ENOSPC)
        outcomes = await asyncio.gather(
            metadata.append([topic(1)]), metadata.append([topic(2)]), return_exceptions=True
        )
        assert [getattr(each, "code", None) for each in outcomes] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        await metadata.append([topic(1)])
        metadata_images.append(metadata.image)
        await metadata.close()

    async def run() -> None:
        await use(open_log(files))

    asyncio.run(run())
    assert list(metadata_images[0].topics) == ["topic-1"]
    assert load(files) == metadata_images[0]


def test_a_snapshot_on_a_full_disk_leaves_the_log_as_it_was() -> None:
    files = SimulatedFiles()
    files.make_directory("/data")

    async def use(log: FileLog) -> None:
        for number in range(20):
            await log.append([topic(number)])
            await log.append([TopicDeleted(number.to_bytes(16, "big"))])
            files.fail_next("rename", errno.ENOSPC)

    with_log(open_log(files, compaction_min_bytes=500), use)
    files.fail_nothing()
    assert load(files).topics == {}
