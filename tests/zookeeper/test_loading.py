"""How a broker begins: from its copy, a snapshot, the log; and when it refuses to, with the operator's ways out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.file_log import FileLog
from flowstone.cluster.logs.metadata_copies import DIRECTORY, FILE_NAME, MetadataCopies
from flowstone.cluster.zookeeper import client
from flowstone.cluster.zookeeper.founding import found_from_file_home, restore_from_local_copy
from flowstone.errors import StartupError
from flowstone.ports.clock import SystemClock
from flowstone.ports.system_files import SystemFiles
from tests.support.zookeeper_ties import Tie, Ties, found, note

# Small, so that a test need not append thousands.
SMALL = {"snapshot_nodes": 20, "log_nodes_kept": 5}


async def append_nodes(tie: Tie, many: int) -> None:
    for number in range(many):
        await tie.metadata.append(note(f"{number}", str(tie.image.version)))


async def names(tie: Tie, node: str) -> list[str]:
    client = tie.consensus._client
    found_names: list[str] = await client.ask(lambda: client.kazoo.get_children_async(client.path(node)))
    return found_names


async def until_truncated(tie: Tie, nodes_max: int) -> None:
    """ZooKeeper tells nobody: this can only be looked for."""
    async with asyncio.timeout(10):
        while len(await names(tie, "log")) > nodes_max or len(await names(tie, "snapshots")) != 1:
            await asyncio.sleep(0.02)


def stored_image(ties: Ties, name: str) -> ClusterImage:
    copy = ties.copy(name)
    try:
        return copy.load()
    finally:
        copy.close()


def build(ties: Ties, name: str = "a", cluster_id: str = "cluster") -> ClusterImage:
    """A cluster of one broker with a little history."""

    async def body() -> ClusterImage:
        async with ties.open(name) as (tie,):
            await tie.metadata.append(found(cluster_id))
            await append_nodes(tie, 3)
            return tie.image

    return asyncio.run(body())


def start(ties: Ties, name: str = "a") -> ClusterImage:
    async def body() -> ClusterImage:
        async with ties.open(name) as (tie,):
            return tie.image

    return asyncio.run(body())


def empty(ties: Ties) -> None:
    client = ties.kazoo()
    client.delete("/", recursive=True)
    client.stop()
    client.close()


# Snapshots and copies


def test_the_log_is_truncated_behind_a_snapshot_and_who_comes_late_begins_with_that(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", **SMALL) as (first,):
            await first.metadata.append(found())
            await append_nodes(first, 60)
            await until_truncated(first, 30)
            async with ties.open("late", **SMALL) as (late,):
                assert late.image == first.image
                await late.metadata.append(note("late"))
                await first.until_version(late.image.version)
                assert first.image == late.image

    asyncio.run(body())


def test_a_stopped_broker_has_a_whole_copy_and_begins_with_it(ties: Ties, tmp_path: Path) -> None:
    image = build(ties)
    assert stored_image(ties, "a") == image

    async def body() -> None:
        async with ties.open("b") as (other,):
            await append_nodes(other, 2)
            async with ties.open("a") as (again,):
                assert again.image == other.image

    asyncio.run(body())
    assert stored_image(ties, "a").version == image.version + 2


def test_a_broker_whose_copy_is_older_than_the_log_begins_with_the_snapshot(ties: Ties) -> None:
    build(ties, "a")

    async def body() -> None:
        async with ties.open("b", **SMALL) as (other,):
            await append_nodes(other, 60)
            await until_truncated(other, 30)
            async with ties.open("a", **SMALL) as (again,):
                assert again.image == other.image

    asyncio.run(body())
    assert stored_image(ties, "a") == stored_image(ties, "b")


def test_a_broker_that_was_away_while_the_log_was_truncated_leaps_to_the_snapshot(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", **SMALL) as (busy, away):
            await busy.metadata.append(found())
            await away.until_version(0)
            before, seen = away.image, list[Sequence[MetadataRecord]]()
            away.metadata.on_change(lambda before, after, records: seen.append(records))
            back = threading.Event()
            away.consensus.log._thread.submit(back.wait)  # the thread that reads
            await append_nodes(busy, 60)
            await until_truncated(busy, 30)
            back.set()
            await away.until_version(busy.image.version)
            assert away.image == busy.image
            assert len(seen) < 60
            for records in seen:
                before = apply(before, records)
            assert before.broker_configs == away.image.broker_configs
            await away.metadata.append(note("back"))

    asyncio.run(body())


def test_a_damaged_copy_is_made_anew_where_zookeeper_has_it_all(ties: Ties, tmp_path: Path) -> None:
    image = build(ties)
    path = tmp_path / "a" / DIRECTORY / FILE_NAME
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 0xFF
    path.write_bytes(damaged)
    assert start(ties) == image
    assert stored_image(ties, "a") == image


# FetchErrorLog


def test_an_empty_zookeeper_is_refused_by_a_broker_that_knows_a_cluster(ties: Ties) -> None:
    build(ties)
    empty(ties)
    with pytest.raises(StartupError, match=r"has lost cluster cluster.*flowstone cluster restore-metadata"):
        start(ties)


def test_a_zookeeper_with_another_cluster_is_refused(ties: Ties) -> None:
    build(ties, "a")
    empty(ties)
    build(ties, "b", "another")
    with pytest.raises(StartupError, match=r"has cluster another, .* belongs to cluster cluster"):
        start(ties, "a")


def test_a_zookeeper_that_has_less_than_the_copy_is_refused(ties: Ties) -> None:
    build(ties, "a")
    empty(ties)

    async def body() -> None:
        async with ties.open("b") as (other,):
            await other.metadata.append(found())

    asyncio.run(body())
    with pytest.raises(StartupError, match="has lost changes of cluster cluster"):
        start(ties, "a")


def test_a_damaged_copy_with_an_empty_zookeeper_is_refused(ties: Ties, tmp_path: Path) -> None:
    build(ties)
    empty(ties)
    path = tmp_path / "a" / DIRECTORY / FILE_NAME
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(StartupError, match="damaged"):
        start(ties)


def test_a_zookeeper_that_does_not_answer_is_an_error_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ZOOKEEPER_CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(StartupError, match=r"ZooKeeper at 127.0.0.1:1 did not answer within 0.2 s"):
        start(Ties("127.0.0.1:1", tmp_path))


def test_an_address_that_is_none_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"zookeeper.connect: '127.0.0.1:port' is not HOST:PORT"):
        start(Ties("127.0.0.1:port", tmp_path))


# The operator's ways out


def test_the_copy_restores_what_zookeeper_has_lost(ties: Ties) -> None:
    image = build(ties)
    empty(ties)
    assert restore_from_local_copy(ties.connect, ties.copy("a"), SystemClock()) == image
    assert start(ties, "a") == image
    assert start(ties, "fresh") == image


def test_a_single_brokers_metadata_founds_a_cluster_when_asked_to(ties: Ties, tmp_path: Path) -> None:
    async def alone() -> ClusterImage:
        (tmp_path / "a").mkdir()
        log = FileLog(MetadataCopies(SystemFiles(), [str(tmp_path / "a")]), SystemClock())
        image = log.load()
        for records in (found(), note("x")):
            await log.append(records)
            image = apply(image, records)
        await log.close()
        return image

    image = asyncio.run(alone())
    with pytest.raises(StartupError, match=r"does not have cluster cluster.*flowstone cluster found"):
        start(ties)
    assert found_from_file_home(ties.connect, ties.copy("a"), SystemClock()) == image
    assert start(ties, "a") == image
    assert start(ties, "fresh") == image


def test_nothing_is_written_over_a_cluster_that_is_there(ties: Ties) -> None:
    image = build(ties)
    with pytest.raises(StartupError, match="already holds a cluster's metadata"):
        restore_from_local_copy(ties.connect, ties.copy("a"), SystemClock())
    assert start(ties, "fresh") == image


def test_a_copy_is_not_taken_for_a_single_brokers_metadata_nor_the_other_way_round(ties: Ties) -> None:
    build(ties)
    with pytest.raises(StartupError, match="copy of a cluster's metadata"):
        found_from_file_home(ties.connect, ties.copy("a"), SystemClock())
    with pytest.raises(StartupError, match="metadata of a single broker"):
        restore_from_local_copy(ties.connect, ties.copy("fresh"), SystemClock())


def test_a_copy_that_knows_no_cluster_founds_none(ties: Ties) -> None:
    with pytest.raises(StartupError, match="contains no cluster"):
        found_from_file_home(ties.connect, ties.copy("fresh"), SystemClock())
