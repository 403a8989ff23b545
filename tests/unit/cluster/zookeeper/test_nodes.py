"""The bytes of the nodes in ZooKeeper: what goes in comes out, and what makes no sense is told, not used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE
from flowstone.cluster.image.records import BrokerConfigChanged, MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.log_batches import encode_batch, encode_snapshot
from flowstone.cluster.zookeeper.nodes import (
    LOG_NODE_BYTES_MAX,
    Head,
    Pointer,
    chunk_node,
    chunk_offset,
    decode_end,
    decode_entry,
    decode_member,
    decode_node,
    decode_pointer,
    decode_snapshot,
    encode_member,
    encode_node,
    encode_pointer,
    split,
)
from flowstone.errors import StorageFault

RECORDS: list[MetadataRecord] = [BrokerConfigChanged("1", {"key": "ü" * 100})] * 3
BATCH = encode_batch(RECORDS, 7, 0)
IMAGE = apply(EMPTY_IMAGE, RECORDS)


def test_an_append_comes_out_as_it_went_in() -> None:
    head, batch = decode_node(encode_node(Head("id", 0), BATCH))
    entry = decode_entry(head.append_id, 7, batch)
    assert (entry.append_id, entry.records, entry.next_offset) == ("id", RECORDS, 10)


def test_chunks_are_small_enough_for_a_node_and_add_up() -> None:
    data = bytes(3 * LOG_NODE_BYTES_MAX + 1)
    chunks = split(data)
    assert b"".join(chunks) == data
    assert max(map(len, chunks)) == LOG_NODE_BYTES_MAX


def test_a_chunk_tells_which_append_it_is_part_of() -> None:
    name = chunk_node(1234, "id-with-dashes", 2).partition("/")[2]
    assert chunk_offset(name) == 1234


def test_a_snapshot_comes_out_as_it_went_in() -> None:
    data = encode_snapshot(IMAGE, 0)
    pointer = Pointer("name", 1, IMAGE.version + 1, len(data))
    assert decode_pointer(encode_pointer(pointer)) == pointer
    assert decode_snapshot(pointer, data) == IMAGE
    assert decode_pointer(b"") is None


def test_a_member_comes_out_as_it_went_in() -> None:
    assert decode_member(encode_member("incarnation", "directory")) == ("incarnation", "directory")


@pytest.mark.parametrize(
    "decode",
    [
        lambda: decode_node(b"not JSON\n"),
        lambda: decode_node(b"[]\n"),
        lambda: decode_node(b"{}\n"),
        lambda: decode_entry("id", 8, BATCH),
        lambda: decode_entry("id", 7, BATCH[:-1]),
        lambda: decode_entry("id", 7, BATCH + b"more"),
        lambda: decode_entry("id", 7, b""),
        lambda: decode_end(b"ten"),
        lambda: decode_pointer(b'{"name":"x"}'),
        lambda: decode_snapshot(Pointer("name", 1, IMAGE.version + 2, 0), encode_snapshot(IMAGE, 0)),
        lambda: decode_snapshot(Pointer("name", 1, IMAGE.version + 1, 0), encode_snapshot(IMAGE, 0)[:-1]),
        lambda: decode_member(b"\xff"),
    ],
)
def test_what_makes_no_sense_is_a_fault(decode: Callable[[], object]) -> None:
    with pytest.raises(StorageFault):
        decode()
