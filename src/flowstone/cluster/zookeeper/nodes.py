"""The contents of the nodes in ZooKeeper, as bytes. Pure.

    log                     the offset at which the log ends; each append is one version of it
    log/<offset>            one append: a line of JSON (its id, how many chunks it has) and a record batch
    chunks/<offset>-<id>-<n>  the batch of an append too large for a node: made before the node, which then has no batch
    snapshots               which snapshot counts: its name, its chunks, the offset at which the log goes on after it
    snapshots/<name>/<n>    one chunk of an image's records, in record batches
    members/<node id>       ephemeral: a broker's incarnation and data directory
    sessions/<incarnation>  ephemeral, of the same session; written to when a membership is renewed
    cluster                 the cluster's id

A log node is named by the offset of its first record, as Kafka names segments, so a broker with an image knows which
node comes next. Nodes are far below the 1 MiB that ZooKeeper takes, for a request holds more than a node's data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.log_batches import read_batches
from flowstone.errors import StorageFault

LOG, CHUNKS, SNAPSHOTS, MEMBERS, SESSIONS, CLUSTER = "log", "chunks", "snapshots", "members", "sessions", "cluster"

LOG_NODE_BYTES_MAX = 512 << 10
# The size of one append, all its chunks together. The failover of 10,000 partitions takes 2 MiB.
APPEND_BYTES_MAX = 64 << 20


class Entry(NamedTuple):
    """One append, as read."""

    append_id: str
    base_offset: int
    records: Sequence[MetadataRecord]
    size_bytes: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)


class Head(NamedTuple):
    append_id: str
    chunk_count: int


class Pointer(NamedTuple):
    """The current snapshot, which a start reads."""

    name: str
    chunk_count: int
    next_offset: int
    size_bytes: int


def offset_name(offset: int) -> str:
    return f"{offset:020d}"


def log_node(offset: int) -> str:
    return f"{LOG}/{offset_name(offset)}"


def chunk_node(base_offset: int, append_id: str, number: int) -> str:
    return f"{CHUNKS}/{offset_name(base_offset)}-{append_id}-{number}"


def chunk_offset(name: str) -> int:
    """Return the base offset of the append that the chunk of this name is part of."""
    return int(name.partition("-")[0])


def split(data: bytes) -> list[bytes]:
    return [data[start : start + LOG_NODE_BYTES_MAX] for start in range(0, len(data), LOG_NODE_BYTES_MAX)]


def encode_node(head: Head, batch: bytes) -> bytes:
    return _encode_line({"id": head.append_id, "chunks": head.chunk_count}) + batch


def decode_node(data: bytes) -> tuple[Head, bytes]:
    line, _, batch = data.partition(b"\n")
    value = _decode_line(line)
    try:
        return Head(value["id"], int(value["chunks"])), batch
    except (KeyError, ValueError) as error:
        raise StorageFault(f"a node of the metadata log is malformed: {error!r}") from error


def decode_entry(append_id: str, base_offset: int, batch: bytes) -> Entry:
    """Decode an append. Raises StorageFault if the batch is damaged, or has another offset."""
    first_offset, records, size_bytes = read_batches(batch)
    if first_offset != base_offset or size_bytes != len(batch) or not records:
        raise StorageFault(f"the metadata log's node of offset {base_offset} is damaged")
    return Entry(append_id, base_offset, records, size_bytes)


def encode_end(next_offset: int) -> bytes:
    return str(next_offset).encode()


def decode_end(data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise StorageFault(f"the metadata log's end in ZooKeeper is not a number: {data[:40]!r}") from error


def encode_pointer(pointer: Pointer) -> bytes:
    return _encode_line(pointer._asdict())


def decode_pointer(data: bytes) -> Pointer | None:
    """Return the current snapshot's pointer, or None while there is none."""
    if not data:
        return None
    try:
        return Pointer(**_decode_line(data))
    except TypeError as error:
        raise StorageFault(f"the node that names the snapshot of the metadata is malformed: {error}") from error


def decode_snapshot(pointer: Pointer, data: bytes) -> ClusterImage:
    first_offset, records, size_bytes = read_batches(data)
    if size_bytes != len(data) or first_offset + len(records) != pointer.next_offset:
        raise StorageFault(f"the snapshot {pointer.name} of the metadata is damaged")
    return apply(ClusterImage(version=first_offset - 1), records)


def encode_member(incarnation: str, directory_id: str) -> bytes:
    return _encode_line({"incarnation": incarnation, "directory_id": directory_id})


def decode_member(data: bytes) -> tuple[str, str]:
    """Return (incarnation, directory id)."""
    value = _decode_line(data)
    return str(value.get("incarnation", "")), str(value.get("directory_id", ""))


def _encode_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _decode_line(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise StorageFault(f"a node in ZooKeeper is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StorageFault("a node in ZooKeeper is not a JSON object")
    return value
