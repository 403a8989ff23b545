"""The records of `__share_group_state`, byte by byte where Kafka's tools read them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.coordinator.share.record_format import decode, encode
from flowstone.coordinator.share.records import (
    Delay,
    LetterBatch,
    LetterRange,
    ShareKey,
    ShareRecord,
    ShareSnapshot,
    ShareStateRemoved,
    ShareUpdate,
    StateBatch,
)
from flowstone.errors import StorageFault

KEY = ShareKey("g", bytes(range(16)), 3)
KEY_BYTES = "0001 67 000102030405060708090a0b0c0d0e0f 00000003"

int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
keys = st.builds(ShareKey, st.text(min_size=1, max_size=20), st.binary(min_size=16, max_size=16), int32)
batches = st.lists(st.builds(StateBatch, int64, int64, st.sampled_from([0, 2, 4]), int16), max_size=200).map(tuple)
topic_ids = st.binary(min_size=16, max_size=16)
ranges = st.lists(st.builds(LetterRange, int64, int64, int16, st.integers(0, 1)), max_size=3).map(tuple)
rest = {
    "key": keys,
    "snapshot_epoch": int32,
    "leader_epoch": int32,
    "start_offset": int64,
    "batches": batches,
    "delivery_complete_count": int32,
    "delays": st.lists(st.builds(Delay, int64, int64), max_size=3).map(tuple),
    "letters": st.none() | st.builds(LetterBatch, topic_ids, int32, int64, int32, int64, ranges),
    "given_up": ranges,
}
records = st.one_of(
    st.builds(ShareUpdate, **rest),
    st.builds(ShareSnapshot, **rest, state_epoch=int32, create_ms=int64, write_ms=int64),
    st.builds(ShareStateRemoved, keys),
)


@given(records)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_record_survives_encoding_and_decoding(record: ShareRecord) -> None:
    assert decode(*encode(record)) == record


def test_a_snapshot_has_the_bytes_of_kafka() -> None:
    record = ShareSnapshot(KEY, 1, 2, 3, 4, 5, 6, (StateBatch(7, 8, 2, 1),), 9)
    key, value = encode(record)
    assert key == bytes.fromhex("0000" + KEY_BYTES)
    epochs, times = "00000001 00000002 00000003 0000000000000004", "0000000000000005 0000000000000006"
    batch = "02 0000000000000007 0000000000000008 02 0001 00"
    assert value == bytes.fromhex(f"0000 {epochs} {times} {batch} 01 00 04 00000009")


def test_an_update_has_the_bytes_of_kafka() -> None:
    key, value = encode(ShareUpdate(KEY, 1, 3))
    assert key == bytes.fromhex("0001" + KEY_BYTES)
    assert value == bytes.fromhex("0000 00000001 00000003 ffffffffffffffff 01 00")


def test_a_newer_version_and_an_unknown_key_are_skipped() -> None:
    key, value = encode(ShareUpdate(KEY, 1, 3))
    assert value is not None
    assert decode(key, struct.pack(">h", 1) + value[2:]) is None
    assert decode(struct.pack(">h", 9) + key[2:], value) is None


@pytest.mark.parametrize("cut", [1, 5, 14])
def test_damage_is_a_storage_fault(cut: int) -> None:
    key, value = encode(ShareUpdate(KEY, 1, 3, 4, (StateBatch(1, 2, 0, 1),)))
    assert value is not None
    with pytest.raises(StorageFault):
        decode(key, value[:-cut])
    with pytest.raises(StorageFault):
        decode(key[:-cut], value)
