"""The records of `__transaction_state`, byte by byte where Kafka's tools read them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.coordinator.record_batches import decode_batches, encode_batches
from flowstone.coordinator.transactions import record_format
from flowstone.coordinator.transactions.record_format import decode, encode
from flowstone.coordinator.transactions.records import TransactionRemoved, TransactionState, TransactionStored
from flowstone.errors import StorageFault
from flowstone.types import TopicPartition

KEY = bytes.fromhex("0000 0001 78")  # version 0, "x"
PARTITIONS = frozenset({TopicPartition("t", 1), TopicPartition("t", 0)})
ONGOING = TransactionStored(
    "x",
    7,
    3,
    60_000,
    TransactionState.ONGOING,
    0x1122,
    PARTITIONS,
    0x11,
)
# Version, producer id, epoch, timeout, state.
START = "0000000000000007 0003 0000ea60 01"
TIMES = "0000000000001122 0000000000000011"


def records() -> st.SearchStrategy[TransactionStored]:
    int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))
    partitions = st.frozensets(st.builds(TopicPartition, st.text(min_size=1, max_size=300), int32), max_size=5)
    made = st.builds(
        TransactionStored,
        transactional_id=st.text(min_size=1, max_size=20),
        producer_id=int64,
        producer_epoch=int16,
        timeout_ms=int32,
        state=st.sampled_from(TransactionState),
        last_update_ms=int64,
        partitions=partitions,
        start_ms=int64,
        previous_producer_id=int64,
        next_producer_id=int64,
        last_producer_epoch=int16,
        client_version=st.sampled_from([0, 1, 2]),
    )
    return made.map(
        lambda record: record._replace(partitions=frozenset()) if record.state is TransactionState.EMPTY else record
    )


@given(records())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_record_survives_encoding_and_decoding(record: TransactionStored) -> None:
    assert decode(*encode(record)) == record


def test_a_record_is_written_in_version_1_with_null_partitions_when_empty() -> None:
    empty = TransactionStored("x", 7, 3, 60_000, TransactionState.EMPTY, 0x1122)
    value = bytes.fromhex("0001 0000000000000007 0003 0000ea60 00" + "00" + "0000000000001122 ffffffffffffffff" + "00")
    assert encode(empty) == (KEY, value)


def test_partitions_are_grouped_by_topic_and_sorted() -> None:
    partitions = "02" + "02 74" + "03 00000000 00000001" + "00"
    assert encode(ONGOING) == (KEY, bytes.fromhex("0001" + START + partitions + TIMES + "00"))


def test_tags_0_to_2_are_kafkas_and_tag_10_000_is_ours() -> None:
    record = ONGOING._replace(
        partitions=frozenset(), previous_producer_id=5, next_producer_id=6, client_version=2, last_producer_epoch=9
    )
    tags = "04" + "00 08 0000000000000005" + "01 08 0000000000000006" + "02 02 0002" + "904e 02 0009"
    assert encode(record) == (KEY, bytes.fromhex("0001" + START + "01" + TIMES + tags))


def test_version_0_is_read() -> None:
    partitions = "00000001" + "0001 74" + "00000002 00000000 00000001"
    assert decode(KEY, bytes.fromhex("0000" + START + partitions + TIMES)) == ONGOING
    empty = bytes.fromhex("0000 0000000000000007 0003 0000ea60 00" + "ffffffff" + TIMES)
    assert decode(KEY, empty) == ONGOING._replace(state=TransactionState.EMPTY, partitions=frozenset())


def test_the_tag_that_kafka_reserves_and_unknown_ones_are_skipped() -> None:
    tags = "03" + "02 02 0002" + "03 02 0004" + "f003 01 00"
    record = ONGOING._replace(partitions=frozenset(), client_version=2)
    assert decode(KEY, bytes.fromhex("0001" + START + "01" + TIMES + tags)) == record


def test_unknown_tags_of_a_topic_are_skipped() -> None:
    partitions = "02" + "02 74" + "03 00000000 00000001" + "01 05 02 abcd"
    assert decode(KEY, bytes.fromhex("0001" + START + partitions + TIMES + "00")) == ONGOING


def test_a_null_value_is_a_tombstone() -> None:
    assert encode(TransactionRemoved("x")) == (KEY, None)
    assert decode(KEY, None) == TransactionRemoved("x")


def test_unknown_versions_of_key_and_value_are_passed_over() -> None:
    key, value = encode(ONGOING)
    assert value is not None
    assert decode(struct.pack(">h", 1) + key[2:], value) is None
    assert decode(struct.pack(">h", 9), value) is None
    assert decode(key, struct.pack(">h", 2) + value[2:]) is None
    assert decode(key, struct.pack(">h", -1) + value[2:]) is None


@pytest.mark.parametrize("length", range(47))
def test_a_value_that_is_cut_short_is_damage(length: int) -> None:
    key, value = encode(ONGOING)
    assert value is not None
    assert len(value) == 47
    with pytest.raises(StorageFault, match="cannot be read"):
        decode(key, value[:length])


def test_what_does_not_belong_there_is_damage() -> None:
    key, value = encode(ONGOING)
    assert value is not None
    for bad_key, bad_value in (
        (key + b"x", value),
        (key[:-1], value),
        (b"", value),
        (key, value + b"x"),
        (key, value[:16] + b"\x06" + value[17:]),  # the state that Kafka calls Dead, which is never stored
        (key[:-1] + b"\xff", value),
    ):
        with pytest.raises(StorageFault, match="cannot be read"):
            decode(bad_key, bad_value)


def test_records_go_through_batches_of_the_log() -> None:
    written = [ONGOING, TransactionRemoved("y"), ONGOING._replace(transactional_id="z")]
    (data,) = encode_batches(record_format, written, 1_700_000_000_000, 1 << 20)
    (batch,) = decode_batches(data)
    assert [decode(key, value) for _, _, key, value, _ in batch.records if key is not None] == written
