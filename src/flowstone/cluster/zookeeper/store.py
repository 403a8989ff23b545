"""Reads and appends the metadata log's nodes in ZooKeeper. Every call waits: for threads.

An append is one transaction: the node `log` is set if it still has the version that its maker knew, and the node of the
append is made. So of several appends to the same end exactly one is done, and one that arrives late, however late, is
not. An append whose answer was lost is settled by trying it again: if that fails, the node's id tells whose it is.

A large append's chunks are written first and are ignored until the append is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from flowstone.cluster.image.ids import id_text, random_id
from flowstone.cluster.image.records import ClusterCreated, MetadataRecord
from flowstone.cluster.logs.log_batches import encode_batch
from flowstone.cluster.zookeeper.client import LOST, ZooKeeperClient, succeeded
from flowstone.cluster.zookeeper.nodes import (
    APPEND_BYTES_MAX,
    CHUNKS,
    CLUSTER,
    LOG,
    LOG_NODE_BYTES_MAX,
    MEMBERS,
    SESSIONS,
    SNAPSHOTS,
    Entry,
    Head,
    chunk_node,
    decode_end,
    decode_entry,
    decode_node,
    encode_end,
    encode_node,
    log_node,
    split,
)
from flowstone.errors import StorageFault
from flowstone.ports.clock import Clock

# The most requests in flight.
WINDOW = 64

Watch = Callable[[WatchedEvent], None]
Answer = TypeVar("Answer")


class End(NamedTuple):
    """The end of the log: the offset of the next append, and the version of the node `log` that it must find."""

    offset: int
    version: int


class Appended(NamedTuple):
    end: End
    size_bytes: int
    is_watched: bool  # whether the next change will be reported


class Truncated(Exception):
    """The requested node is no longer there: a snapshot contains it."""


class TooLarge(Exception):
    pass


class ZooKeeperStore:
    def __init__(self, client: ZooKeeperClient, clock: Clock) -> None:
        self._client, self._clock = client, clock

    def prepare(self) -> None:
        """Create the permanent nodes."""
        for name in (CHUNKS, SNAPSHOTS, MEMBERS, SESSIONS):
            self._client.create(name, b"")
        self._client.create(LOG, encode_end(0))

    def cluster_id(self) -> str:
        """Return the cluster's id, empty while there is no cluster."""
        try:
            data, _ = self._client.get(CLUSTER)
        except NoNodeError:
            return ""
        return data.decode(errors="replace")

    # Reading

    def end(self) -> End:
        self._client.sync()
        return _decode_end(self._client.get(LOG))

    def read(self, offset: int, watch: Watch | None) -> tuple[list[Entry], End]:
        """Return everything from `offset` on, and the end; `watch` is called at the next change.

        Raises Truncated if a snapshot has replaced the log there.
        """
        end, first = self._client.insist(self._read_next, offset, watch)
        if end.offset < offset:
            self._client.sync()  # the server may be behind another one, from which this broker has read before
            end, first = self._client.insist(self._read_next, offset, watch)
        if end.offset < offset:
            raise StorageFault(
                f"ZooKeeper has lost changes: the metadata log ends at {end.offset}, it went to {offset} before"
            )
        if end.offset == offset:
            return [], end
        if first is None:
            raise Truncated
        entries = [self._entry(offset, first)]
        if entries[0].next_offset < end.offset:
            entries += self._read_on(entries[0].next_offset, end.offset)
        return entries, end

    def _read_next(self, offset: int, watch: Watch | None) -> tuple[End, bytes | None]:
        """Return the log's end and the next node in one round trip: usually there is no other."""
        asked = self._client.kazoo.get_async(self._path(LOG), watch)
        asked_first = self._client.kazoo.get_async(self._path(log_node(offset)))
        try:
            end = _decode_end(self._client.wait(asked))
        except NoNodeError as error:
            raise StorageFault(f"ZooKeeper has lost the metadata log: {self._path(LOG)} is not there") from error
        try:
            return end, self._client.wait(asked_first)[0]
        except NoNodeError:
            return end, None

    def _read_on(self, offset: int, end_offset: int) -> list[Entry]:
        names = filter(str.isdigit, self._client.children(LOG))
        offsets = sorted(each for each in map(int, names) if offset <= each < end_offset)
        entries: list[Entry] = []
        for start in range(0, len(offsets), WINDOW):
            window = offsets[start : start + WINDOW]
            found = self._get_all([log_node(each) for each in window])
            entries += [self._entry(*each) for each in zip(window, found, strict=True)]
        if [entry.base_offset for entry in entries] != [offset, *(entry.next_offset for entry in entries[:-1])]:
            raise Truncated
        return entries

    def _entry(self, offset: int, data: bytes) -> Entry:
        head, batch = decode_node(data)
        if head.chunk_count:
            names = [chunk_node(offset, head.append_id, number) for number in range(head.chunk_count)]
            batch = b"".join(self._get_all(names))
        return decode_entry(head.append_id, offset, batch)

    def _get_all(self, names: Sequence[str]) -> list[bytes]:
        try:
            return self._client.get_all(names)
        except NoNodeError as error:
            raise Truncated from error

    # Appending

    def append(self, records: Sequence[MetadataRecord], end: End, watch: Watch) -> Appended | None:
        """Append the records at the end given; return None if another broker's append came first.

        Raises TooLarge if they are too many for one append, Truncated if it can no longer be told what came of them.
        """
        append_id = id_text(random_id())
        batch = encode_batch(records, end.offset, self._clock.time_ms())
        if len(batch) > APPEND_BYTES_MAX:
            raise TooLarge(f"{len(records)} changes of {len(batch)} bytes are too many for one step")
        chunks = split(batch) if len(batch) > LOG_NODE_BYTES_MAX else []
        for number, chunk in enumerate(chunks):
            self._client.create(chunk_node(end.offset, append_id, number), chunk)
        node = encode_node(Head(append_id, len(chunks)), b"" if chunks else batch)
        after = End(end.offset + len(records), end.version + 1)
        founded = next((record.cluster_id for record in records if isinstance(record, ClusterCreated)), None)
        is_done, is_watched = self._settle(append_id, node, end, after, founded, watch)
        if is_done:
            return Appended(after, len(batch), is_watched)
        with suppress(*LOST):  # what is left of them is removed by truncation
            self._client.delete_all(chunk_node(end.offset, append_id, number) for number in range(len(chunks)))
        return None

    def _settle(
        self, append_id: str, node: bytes, end: End, after: End, founded: str | None, watch: Watch
    ) -> tuple[bool, bool]:
        """Return (whether the append was done, whether the watch is set)."""
        is_first_try = True
        while True:
            self._client.wait_connected()
            transaction = self._client.kazoo.transaction()
            transaction.set_data(self._path(LOG), encode_end(after.offset), end.version)
            transaction.create(self._path(log_node(end.offset)), node)
            if founded is not None:
                transaction.create(self._path(CLUSTER), founded.encode())
            asked = transaction.commit_async()
            # Directly after it, because the append triggers the watch that was set before.
            watched = self._client.kazoo.get_async(self._path(LOG), watch)
            try:
                is_done = succeeded(self._client.wait(asked))
            except LOST:
                is_first_try = False
                continue
            if not is_done and not is_first_try:
                is_done = self._is_ours(append_id, end.offset)
            return is_done, self._is_at(watched, after)

    def _is_ours(self, append_id: str, offset: int) -> bool:
        try:
            data, _ = self._client.get(log_node(offset))
        except NoNodeError as error:
            raise Truncated from error
        return decode_node(data)[0].append_id == append_id

    def _is_at(self, watched: Any, end: End) -> bool:
        try:
            return _decode_end(self._client.wait(watched)) == end
        except (*LOST, NoNodeError):  # the next read reports what is missing
            return False

    def _path(self, name: str) -> str:
        return self._client.path(name)


def _decode_end(found: tuple[bytes, Any]) -> End:
    data, stat = found
    return End(decode_end(data), stat.version)
