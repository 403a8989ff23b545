"""The records of share groups in Kafka's binary form. The expected bytes were written by Kafka 4.3.1's own classes."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups.record_format import decode, encode
from flowstone.coordinator.groups.share_records import (
    ShareGroupRecord,
    ShareGroupStored,
    ShareKeyType,
    ShareMemberCurrentStored,
    ShareMemberStored,
    ShareMemberTargetStored,
    ShareRecordRemoved,
    ShareStatesStored,
    ShareTargetStored,
    TopicState,
)
from flowstone.errors import StorageFault

ID = bytes(range(16))
ID_HEX = ID.hex()
STATES = ShareStatesStored("g", (TopicState(ID, "t", (1,)),), (TopicState(ID, "t", (0,)),), ((ID, "d"),))
RECORDS: list[tuple[ShareGroupRecord, str, str]] = [
    (
        ShareMemberStored("g", "m", "r1", "c", "/h", ("t", "u")),
        "000a00016700016d",
        "00000372310263032f68030274027500",
    ),
    (ShareMemberStored("g", "m", None, "c", "/h", ("t",)), "000a00016700016d", "0000000263032f6802027400"),
    (ShareGroupStored("g", 7, -2), "000b000167", "000000000007fffffffffffffffe00"),
    (ShareTargetStored("g", 6, 1_700_000_000_000), "000c000167", "0000000000060100080000018bcfe56800"),
    (
        ShareMemberTargetStored("g", "m", {ID: (0, 300)}),
        "000d00016700016d",
        f"000002{ID_HEX}03000000000000012c0000",
    ),
    (
        ShareMemberCurrentStored("g", "m", 6, 5, {ID: (1,)}),
        "000e00016700016d",
        f"000000000006000000050002{ID_HEX}02000000010000",
    ),
    (
        STATES,
        "000f000167",
        f"000002{ID_HEX}027402000000010002{ID_HEX}027402000000000002{ID_HEX}02640000",
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_records_have_kafkas_bytes(record: ShareGroupRecord, key: str, value: str) -> None:
    assert encode(record) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_a_null_value_is_the_tombstone_of_the_key(record: ShareGroupRecord, key: str, value: str) -> None:
    kind = ShareKeyType(int(key[:4], 16))
    removed = ShareRecordRemoved("g", kind, getattr(record, "member_id", ""))
    assert decode(bytes.fromhex(key), None) == removed
    assert encode(removed) == (bytes.fromhex(key), None)


def test_a_target_without_a_time_is_read() -> None:
    assert decode(bytes.fromhex("000c000167"), bytes.fromhex("00000000000600")) == ShareTargetStored("g", 6, 0)


def test_unknown_tagged_fields_are_skipped() -> None:
    value = bytes.fromhex("000000000007fffffffffffffffe") + bytes((1, 5, 2, 0xAA, 0xBB))
    assert decode(bytes.fromhex("000b000167"), value) == ShareGroupStored("g", 7, -2)


def test_a_newer_version_of_a_value_is_skipped() -> None:
    assert decode(bytes.fromhex("000b000167"), b"\0\1" + bytes(13)) is None


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_a_record_that_was_cut_is_damage(record: ShareGroupRecord, key: str, value: str) -> None:
    for cut in range(2, len(value) // 2):
        with pytest.raises(StorageFault):
            decode(bytes.fromhex(key), bytes.fromhex(value)[:cut])
