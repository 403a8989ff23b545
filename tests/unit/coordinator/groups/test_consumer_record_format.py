"""The records of consumer groups in Kafka's binary form. Kafka 4.3.1's own classes wrote the expected bytes."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups.consumer_records import (
    ClassicMember,
    ConsumerGroupStored,
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    ConsumerTargetStored,
    MemberState,
)
from flowstone.coordinator.groups.record_format import decode, encode
from flowstone.errors import StorageFault

ID = bytes(range(16))
TIME_MS = 1_700_000_000_000
RECORDS: list[tuple[ConsumerRecord, str, str]] = [
    (
        ConsumerMemberStored("g", "m", "i", "r", "c", "/h", ("t", "u"), "a.*", 60_000, "range"),
        "000500016700016d",
        "0000026902720263032f68030274027504612e2a0000ea600672616e676500",
    ),
    (
        ConsumerMemberStored(
            "g",
            "m",
            None,
            None,
            "c",
            "/h",
            ("t",),
            None,
            60_000,
            None,
            ClassicMember(45_000, (("range", bytes((1, 2, 3))),)),
        ),
        "000500016700016d",
        "000000000263032f68020274000000ea6000010012010000afc8020672616e6765040102030000",
    ),
    (ConsumerGroupStored("g", 7, -2), "0003000167", "000000000007010008fffffffffffffffe"),
    (ConsumerGroupStored("g", 7, 0), "0003000167", "00000000000700"),
    (ConsumerTargetStored("g", 6, TIME_MS), "0006000167", "0000000000060100080000018bcfe56800"),
    (
        ConsumerMemberTargetStored("g", "m", frozenset({(ID, 0), (ID, 300)})),
        "000700016700016d",
        "000002000102030405060708090a0b0c0d0e0f03000000000000012c0000",
    ),
    (
        ConsumerMemberCurrentStored("g", "m", 6, 5, MemberState.UNREVOKED, {(ID, 0): 3, (ID, 1): 6}, {(ID, 2): 4}),
        "000800016700016d",
        "000000000006000000050102000102030405060708090a0b0c0d0e0f030000000000000001010009030000000300000006"
        "02000102030405060708090a0b0c0d0e0f0200000002010005020000000400",
    ),
    (
        ConsumerRegexStored("g", "a.*", ("a", "ab"), 5, TIME_MS),
        "00100001670003612e2a",
        "000003026103616200000000000000050000018bcfe5680000",
    ),
]


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_a_record_has_kafkas_bytes_and_is_read_back(record: ConsumerRecord, key: str, value: str) -> None:
    assert [part.hex() for part in encode(record) if part is not None] == [key, value]
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == record


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_a_tombstone_names_what_it_removes(record: ConsumerRecord, key: str, value: str) -> None:
    removed = decode(bytes.fromhex(key), None)
    assert isinstance(removed, ConsumerRecordRemoved)
    assert encode(removed) == (bytes.fromhex(key), None)


@pytest.mark.parametrize(("record", "key", "value"), RECORDS)
def test_a_damaged_record_is_a_fault(record: ConsumerRecord, key: str, value: str) -> None:
    with pytest.raises(StorageFault):
        decode(bytes.fromhex(key), bytes.fromhex(value)[:4])
    with pytest.raises(StorageFault):
        decode(bytes.fromhex(key) + b"x", bytes.fromhex(value))


def test_a_version_of_a_newer_broker_is_passed_over() -> None:
    assert decode(bytes.fromhex("0003000167"), bytes.fromhex("000100000007")) is None


def test_partition_metadata_of_older_brokers_is_passed_over_as_a_tombstone_is() -> None:
    expected = ConsumerRecordRemoved("g", ConsumerKey.PARTITION_METADATA)
    assert decode(bytes.fromhex("0004000167"), bytes.fromhex("0000deadbeef")) == expected


def test_a_state_that_is_not_known_is_kept_as_unknown() -> None:
    key, value = encode(ConsumerMemberCurrentStored("g", "m", 6, 5, MemberState.STABLE, {}, {}))
    assert value is not None
    record = decode(key, value.replace(b"\0\0\0\x05\0", b"\0\0\0\x05\x63"))
    assert isinstance(record, ConsumerMemberCurrentStored)
    assert record.state is MemberState.UNKNOWN
