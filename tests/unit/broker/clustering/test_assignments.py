"""Partitions follow the metadata, through a broker that is asked over its socket and killed between two steps."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from flowstone.app import App
from flowstone.cluster.decisions.partition_plans import NewTopic
from flowstone.cluster.decisions.topic_changes import create_topics, delete_topics
from flowstone.cluster.image.ids import random_id
from flowstone.errors import StartupError, StorageFault
from flowstone.types import ZERO_UUID
from flowstone.wire.record_batch import Record, build_batch

BATCH = bytearray(build_batch([Record(0, 0, None, b"v")]))


class AppTopics:
    """A broker in a directory, and its topics made and deleted as its handlers do it."""

    def __init__(self, data: Path) -> None:
        self.app = App({"log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0"})

    async def create(self, *names: str, num_partitions: int = 1) -> None:
        topics = [NewTopic(name, num_partitions=num_partitions) for name in names]
        config = self.app.config
        await self.app.services.metadata.change(lambda image: create_topics(image, topics, config, random_id))

    async def delete(self, *names: str) -> None:
        asked: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in names]
        await self.app.services.metadata.change(lambda image: delete_topics(image, asked))

    def append(self, topic: str, partition: int = 0) -> int:
        return self.app.services.partitions.get(topic, partition).append(BATCH, 1).base_offset


def test_a_topic_made_again_while_it_is_deleted_opens_by_itself_and_empty(tmp_path: Path) -> None:
    async def run() -> None:
        topics = AppTopics(tmp_path)
        await topics.app.start()
        await topics.create("a", num_partitions=3)
        for partition in range(3):
            topics.append("a", partition)
        await asyncio.gather(topics.delete("a"), topics.create("a", num_partitions=3))
        await topics.app.services.logs.wait_forgotten()
        assert [topics.append("a", partition) for partition in range(3)] == [0, 0, 0]
        await topics.app.stop()

    asyncio.run(run())


def test_a_crash_between_a_topics_deletion_and_its_directorys_leaves_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        topics = AppTopics(tmp_path)
        await topics.app.start()
        await topics.create("gone", "kept")
        topics.append("gone")
        topics.append("kept")
        topics.app.services.logs.delete = lambda topic_partition: None  # type: ignore[method-assign]
        await topics.delete("gone")
        topics.app.kill()

        topics = AppTopics(tmp_path)
        await topics.app.start()
        assert not (tmp_path / "gone-0").exists()
        assert (tmp_path / "kept-0").exists()
        assert topics.append("kept") == 1
        await topics.app.stop()

    asyncio.run(run())


def test_logs_without_the_metadata_that_goes_with_them_are_not_touched(tmp_path: Path) -> None:
    async def run() -> None:
        topics = AppTopics(tmp_path)
        await topics.app.start()
        await topics.create("a")
        topics.append("a")
        await topics.app.stop()
        (metadata,) = (tmp_path / "__cluster_metadata").iterdir()
        metadata.unlink()
        for _ in range(2):  # nor by the start after that
            with pytest.raises(StartupError, match="holds 1 partitions, but its metadata log contains no topic"):
                await AppTopics(tmp_path).app.start()
        assert (tmp_path / "a-0").exists()

    asyncio.run(run())


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_topic_whose_creation_the_metadata_log_has_lost_keeps_its_records(tmp_path: Path, is_clean: bool) -> None:
    async def run() -> None:
        data, saved = tmp_path / "data", tmp_path / "saved"
        topics = AppTopics(data)
        await topics.app.start()
        await topics.create("kept")
        await topics.create("lost")
        topics.append("kept")
        topics.append("lost")
        await topics.app.stop() if is_clean else topics.app.kill()
        shutil.copytree(data / "__cluster_metadata", saved)
        (metadata,) = (data / "__cluster_metadata").iterdir()
        whole = metadata.read_bytes()
        metadata.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

        topics = AppTopics(data)
        await topics.app.start()
        assert topics.append("kept") == 1
        await topics.app.services.logs.wait_forgotten()
        await topics.create("lost")
        assert topics.append("lost") == 0
        await topics.app.stop()

        (stray,) = data.glob("lost-0.*-stray")
        shutil.rmtree(data / "lost-0")
        stray.rename(data / "lost-0")
        shutil.copytree(saved, metadata.parent, dirs_exist_ok=True)
        topics = AppTopics(data)
        await topics.app.start()
        assert topics.append("lost") == 1
        await topics.app.stop()

    asyncio.run(run())


def test_a_partition_that_cannot_be_deleted_does_not_keep_the_others_of_its_topic(tmp_path: Path) -> None:
    async def run() -> None:
        topics = AppTopics(tmp_path)
        await topics.app.start()
        await topics.create("a", num_partitions=3)
        for partition in range(3):
            topics.append("a", partition)
        logs = topics.app.services.logs
        delete = logs.delete

        def delete_but_the_first(topic_partition):
            if topic_partition.partition == 0:
                raise StorageFault("the disk is tired")
            delete(topic_partition)

        logs.delete = delete_but_the_first  # type: ignore[method-assign]
        await topics.delete("a")
        assert not len(topics.app.services.partitions)
        assert not (tmp_path / "a-2").exists()
        await topics.app.stop()

    asyncio.run(run())
