"""Ties of several brokers to one path in a real ZooKeeper, each with a data directory of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kazoo.client import KazooClient

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import BrokerConfigChanged, ClusterCreated, MetadataRecord, ProducerIdsReserved
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.metadata import Metadata
from flowstone.cluster.zookeeper.consensus import ZooKeeperConsensus
from flowstone.ports.clock import SystemClock
from flowstone.ports.system_files import SystemFiles

SESSION_TIMEOUT_S = 2.0
WAIT_S = 15.0


class Ties:
    def __init__(self, connect: str, data: Path) -> None:
        self.connect, self._data = connect, data

    def copy(self, name: str) -> LocalCopy:
        directory = self._data / name
        directory.mkdir(exist_ok=True)
        return LocalCopy(SystemFiles(), [str(directory)], SystemClock())

    def consensus(self, name: str, session_timeout_s: float = SESSION_TIMEOUT_S, **options: int) -> ZooKeeperConsensus:
        return ZooKeeperConsensus(self.connect, session_timeout_s, self.copy(name), SystemClock(), **options)

    @asynccontextmanager
    async def open(
        self, *names: str, session_timeout_s: float = SESSION_TIMEOUT_S, **options: int
    ) -> AsyncIterator[Sequence[Tie]]:
        """Those that are neither left nor killed by then are left at the end."""
        ties = []
        try:
            for name in names:
                consensus = self.consensus(name, session_timeout_s, **options)
                ties.append(Tie(consensus, Metadata(consensus.log)))
            yield ties
        finally:
            for tie in ties:
                await tie.close()

    def kazoo(self) -> KazooClient:
        """Another look at the same path: it is started and must be stopped."""
        hosts, _, path = self.connect.partition("/")
        client = KazooClient(f"{hosts}/{path}")
        client.start()
        return client


class Tie:
    """One broker's consensus and what it makes of the log."""

    def __init__(self, consensus: ZooKeeperConsensus, metadata: Metadata) -> None:
        self.consensus, self.metadata = consensus, metadata
        self._is_open = True

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    @property
    def member_ids(self) -> list[int]:
        return [member.node_id for member in self.consensus.members]

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self.consensus.leave()
            await self.metadata.close()

    def kill(self) -> None:
        self._is_open = False
        self.consensus.abort()
        self.metadata.abort()

    async def until_version(self, version: int) -> None:
        """Returns once the image is that new."""
        await until(
            lambda: self.image.version >= version, lambda wake: self.metadata.on_change(lambda *_: wake()), WAIT_S
        )

    async def until_members(self, node_ids: Sequence[int]) -> None:
        await until(lambda: self.member_ids == list(node_ids), self.consensus.on_members, WAIT_S)


async def until(
    is_so: Callable[[], bool], listen: Callable[[Callable[[], None]], None], timeout_s: float = WAIT_S
) -> None:
    """Asks now, and whenever the listener is called."""
    changed = asyncio.Event()
    listen(changed.set)
    async with asyncio.timeout(timeout_s):
        while not is_so():
            await changed.wait()
            changed.clear()


def found(cluster_id: str = "cluster") -> list[MetadataRecord]:
    return [ClusterCreated(cluster_id)]


def note(name: str, value: str = "x") -> list[MetadataRecord]:
    return [BrokerConfigChanged("1", {name: value})]


def count_one(image: ClusterImage) -> tuple[Sequence[MetadataRecord], int]:
    """A decision that shows a lost or doubled change: each takes the next number."""
    return [ProducerIdsReserved(image.next_producer_id + 1)], image.next_producer_id
