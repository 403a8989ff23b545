"""The records of `__consumer_offsets` in Kafka's binary form. The expected bytes were written down by hand."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.coordinator.groups import record_format
from flowstone.coordinator.groups.record_format import decode, encode, encode_all
from flowstone.coordinator.groups.records import (
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetCommitted,
    OffsetRemoved,
    StoredMember,
)
from flowstone.errors import StorageFault
from flowstone.wire.record_batch import encode_record

MEMBER = StoredMember("m-1", "i", "client", "/127.0.0.1", 300_000, 45_000, b"\x00\x01", b"\x02")
GROUP = GroupStored("gé", "consumer", 7, "range", "m-1", 1_700_000_000_000, (MEMBER,))
EMPTY_GROUP = GroupStored("g", "", 8, None, None, -1, ())
OFFSET = OffsetCommitted("g", "t", 3, 42, 5, "note", 1_700_000_000_000)
EXPIRING_OFFSET = OffsetCommitted("g", "t", 3, 42, -1, "", 1_700_000_000_000, 1_700_000_000_500)


def string(text: str) -> bytes:
    return pack(">h", len(text.encode())) + text.encode()


@pytest.mark.parametrize(
    "record", [GROUP, EMPTY_GROUP, GroupRemoved("g"), OFFSET, EXPIRING_OFFSET, OffsetRemoved("g", "t", 3)]
)
def test_a_record_is_read_as_it_was_written(record: GroupRecord) -> None:
    key, value = encode(record)
    assert decode(key, value) == record


@given(
    st.lists(
        st.builds(
            OffsetCommitted,
            st.sampled_from(["g", "gé", "g" * 300]),
            st.sampled_from(["t", "t" * 249]),
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**63 - 1),
            st.integers(-1, 2**31 - 1),
            st.sampled_from(["", "note"]),
            st.integers(0, 2**62),
            st.sampled_from([-1, 2**40]),
        )
        | st.builds(OffsetRemoved, st.just("g"), st.just("t"), st.integers(0, 99))
        | st.sampled_from([GROUP, GroupRemoved("g")]),
        max_size=70,
    )
)
def test_records_stand_in_a_batch_as_any_others_would(records: list[GroupRecord]) -> None:
    assert encode_all(records) == [encode_record(delta, 0, *encode(record)) for delta, record in enumerate(records)]


def test_the_offset_delta_of_a_records_place_may_take_two_bytes() -> None:
    records = [OffsetCommitted("g", "t", partition, 1) for partition in range(100)]
    assert encode_all(records) == [encode_record(delta, 0, *encode(record)) for delta, record in enumerate(records)]


def test_an_offset_is_kafkas_key_1_and_value_3() -> None:
    key, value = encode(OFFSET)
    assert key == pack(">h", 1) + string("g") + string("t") + pack(">i", 3)
    assert value == pack(">hqi", 3, 42, 5) + string("note") + pack(">q", 1_700_000_000_000)


def test_an_offset_with_a_time_to_live_is_kafkas_value_1() -> None:
    _key, value = encode(EXPIRING_OFFSET)
    assert value == pack(">hq", 1, 42) + string("") + pack(">qq", 1_700_000_000_000, 1_700_000_000_500)


def test_a_group_is_kafkas_key_2_and_value_3() -> None:
    key, value = encode(GROUP)
    assert key == pack(">h", 2) + string("gé")
    head = pack(">h", 3) + string("consumer") + pack(">i", 7) + string("range") + string("m-1")
    member = string("m-1") + string("i") + string("client") + string("/127.0.0.1") + pack(">ii", 300_000, 45_000)
    blobs = pack(">i", 2) + b"\x00\x01" + pack(">i", 1) + b"\x02"
    assert value == head + pack(">qi", 1_700_000_000_000, 1) + member + blobs


def test_older_values_are_read() -> None:
    key, _value = encode(OFFSET)
    assert decode(key, pack(">hq", 0, 42) + string("note") + pack(">q", 9)) == OffsetCommitted(
        "g", "t", 3, 42, -1, "note", 9
    )
    member = string("m") + string("c") + string("/h") + pack(">i", 6000) + pack(">i", 0) + pack(">i", 0)
    value = pack(">h", 0) + string("consumer") + pack(">i", 1) + string("range") + string("m") + pack(">i", 1) + member
    assert decode(pack(">h", 2) + string("g"), value) == GroupStored(
        "g", "consumer", 1, "range", "m", -1, (StoredMember("m", None, "c", "/h", 6000, 6000, b"", b""),)
    )


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_each_version_of_an_offset_has_the_fields_that_kafka_gave_it(version: int) -> None:
    value = pack(">hq", version, 42)
    value += pack(">i", 5) if version >= 3 else b""
    value += string("note") + pack(">q", 9)
    value += pack(">q", 11) if version == 1 else b""
    expected = OffsetCommitted("g", "t", 3, 42, 5 if version >= 3 else -1, "note", 9, 11 if version == 1 else -1)
    assert decode(encode(OFFSET)[0], value) == expected


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_each_version_of_a_group_has_the_fields_that_kafka_gave_it(version: int) -> None:
    value = pack(">h", version) + string("consumer") + pack(">i", 7) + string("range") + string("m")
    value += pack(">q", 9) if version >= 2 else b""
    value += pack(">i", 1) + string("m") + (string("i") if version >= 3 else b"") + string("c") + string("/h")
    value += (pack(">i", 300) if version >= 1 else b"") + pack(">i", 60)
    value += pack(">i", 2) + b"ab" + pack(">i", 1) + b"c"
    member = StoredMember("m", "i" if version >= 3 else None, "c", "/h", 300 if version else 60, 60, b"ab", b"c")
    expected = GroupStored("g", "consumer", 7, "range", "m", 9 if version >= 2 else -1, (member,))
    assert decode(pack(">h", 2) + string("g"), value) == expected


def compact(text: str) -> bytes:
    return bytes([len(text.encode()) + 1]) + text.encode()


# A tag section with one field: tag 7, three bytes.
TAGS = b"\x01\x07\x03abc"


def test_the_flexible_version_of_an_offset_is_read_and_its_tags_are_ignored() -> None:
    key, _value = encode(OFFSET)
    assert decode(key, pack(">hqi", 4, 42, 5) + compact("note") + pack(">q", 1_700_000_000_000) + TAGS) == OFFSET


def test_the_flexible_version_of_a_group_is_read_and_the_tags_of_its_members_are_ignored() -> None:
    key, _value = encode(GROUP)
    head = pack(">h", 4) + compact("consumer") + pack(">i", 7) + compact("range") + compact("m-1")
    member = compact("m-1") + compact("i") + compact("client") + compact("/127.0.0.1") + pack(">ii", 300_000, 45_000)
    blobs = b"\x03\x00\x01" + b"\x02\x02"
    members = b"\x03" + 2 * (member + blobs + TAGS)
    found = decode(key, head + pack(">q", 1_700_000_000_000) + members + TAGS)
    assert found == GROUP._replace(members=(MEMBER, MEMBER))


def test_null_names_of_the_flexible_version_are_read() -> None:
    head = pack(">h", 4) + compact("") + pack(">i", 8) + b"\x00\x00" + pack(">q", -1)
    assert decode(pack(">h", 2) + string("g"), head + b"\x01\x00") == EMPTY_GROUP


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (pack(">h", 17) + string("g"), b"\x00\x00"),
        (pack(">h", 17) + string("g"), None),
        (encode(OFFSET)[0], pack(">hq", 5, 1)),
        (encode(GROUP)[0], pack(">hq", 99, 1)),
    ],
)
def test_a_record_of_a_type_or_version_beyond_ours_is_passed_over(key: bytes, value: bytes | None) -> None:
    assert decode(key, value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"y", b"x"),
        (encode(OFFSET)[0][:-1], encode(OFFSET)[1]),
        (encode(OFFSET)[0], (encode(OFFSET)[1] or b"")[:-1]),
        (encode(OFFSET)[0], pack(">hq", -1, 1)),
        (encode(OFFSET)[0], pack(">hqi", 4, 42, 5) + b"\x09note"),
        (encode(OFFSET)[0], pack(">hqi", 4, 42, 5) + b"\xff\xff\xff\xff\xff\xff"),
        (encode(OFFSET)[0], pack(">hqi", 4, 42, 5) + compact("note") + pack(">q", 0) + TAGS[:-1]),
        (encode(GROUP)[0], pack(">h", 4) + compact("") + pack(">i", 8) + b"\x00\x00" + pack(">q", -1) + b"\x01"),
        (pack(">h", -2), b"x"),
        (encode(GROUP)[0], (encode(GROUP)[1] or b"")[:-1]),
    ],
)
def test_a_record_that_makes_no_sense_is_damage(key: bytes, value: bytes | None) -> None:
    with pytest.raises(StorageFault):
        decode(key, value)


def test_long_names_are_encoded_and_read_and_not_kept() -> None:
    for name in ("g", "g" * 32_000, "ü" * 16_000):
        committed = OffsetCommitted(name, "t", 1, 42, commit_timestamp_ms=5)
        key, value = record_format.encode(committed)
        assert record_format.decode(key, value) == committed
        (encoded,) = record_format.encode_all([committed])
        assert value is not None
        assert encoded == encode_record(0, 0, key, value)
    before = (
        record_format._cached_record_parts.cache_info().currsize,
        record_format._cached_offset_key_prefix.cache_info().currsize,
    )
    for number in range(10):
        committed = OffsetCommitted("g" * (600 + number), "t", 1, 42, commit_timestamp_ms=5)
        record_format.encode_all([committed])
        record_format.decode(*record_format.encode(committed))
    after = (
        record_format._cached_record_parts.cache_info().currsize,
        record_format._cached_offset_key_prefix.cache_info().currsize,
    )
    assert after == before


@pytest.mark.parametrize("record", [OFFSET, OffsetRemoved("g", "t" * 249 + "x" * 300, 3)])
def test_a_key_with_bytes_too_many_is_damaged(record: GroupRecord) -> None:
    key, _ = encode(record)
    with pytest.raises(StorageFault, match="cannot be read"):
        decode(key[:-4] + b"\0" + key[-4:], None)
