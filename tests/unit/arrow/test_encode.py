"""Rows to record batches: what a batch is, where rows go, which columns and rows are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.arrow.decode import Decoder
from flowstone.arrow.encode import BATCH_BYTES_MAX, EncodedBatch, Encoder, RowRefused
from flowstone.arrow.row_inputs import ColumnError
from flowstone.arrow.schema import HEADERS_TYPE
from flowstone.config import TopicConfig
from flowstone.log.partition.validation import check_batch
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import BatchHeader, Record, decode_records, parse_header

NOW_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


def encode(rows: Any, partitions: int = 1, **options: Any) -> list[EncodedBatch]:
    """All of one topic; each batch is one a broker takes."""
    encoded = Encoder(now_ms=NOW_MS, **options).encode(rows, {"orders": partitions}, "orders")
    for each in encoded:
        accepted(each)
    return encoded


def accepted(encoded: EncodedBatch) -> BatchHeader:
    sent, stored = check_batch(encoded.batch, TopicConfig(), NOW_MS)
    assert stored == sent  # its max_timestamp, too
    assert sent.record_count == encoded.record_count
    return sent


def records(encoded: list[EncodedBatch]) -> list[Record]:
    return [record for each in encoded for record in decode_records(each.batch)]


def values(encoded: list[EncodedBatch]) -> list[bytes | None]:
    return [record.value for record in records(encoded)]


def table(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_a_batch_holds_all_that_a_row_has() -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
    row = {
        "key": b"k",
        "value": b"v",
        "timestamp": at,
        "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
    }

    (encoded,) = encode(pa.RecordBatch.from_pylist([row]))

    assert encoded.partition == ORDERS
    assert records([encoded]) == [Record(0, 1_700_000_000_123, b"k", b"v", (("h", b"x"), ("n", None)))]


def test_only_a_value_is_needed_and_that_may_be_null() -> None:
    encoded = encode(table(value=pa.array([b"v", None], pa.binary())))

    assert records(encoded) == [Record(0, NOW_MS, None, b"v"), Record(1, NOW_MS, None, None)]


def test_a_batch_is_as_producers_send_it() -> None:
    (encoded,) = encode(table(value=[b"a", b"b"]))

    header = parse_header(encoded.batch)
    assert header.base_offset == 0
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.attributes, header.last_offset_delta) == (0, 1)


def test_no_rows_are_no_batches() -> None:
    assert encode(table(value=pa.array([], pa.binary()))) == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(3),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_text_and_bytes_of_every_layout_are_taken(kind: Any) -> None:
    column = pa.array(["abc", None, "xyz", "abc"]).cast(pa.binary() if kind == pa.binary(3) else kind).cast(kind)

    assert values(encode(table(value=column))) == [b"abc", None, b"xyz", b"abc"]


def test_a_slice_of_rows_is_taken_as_it_is() -> None:
    count = 30
    whole = pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k%d" % i if i % 3 else None,
                "value": f"v{i}" if i % 4 else None,
                "partition": 0 if i % 5 else None,
                "timestamp": datetime.fromtimestamp(1_700_000_000 + i, UTC),
                "headers": [{"key": f"h{i}", "value": b"x"}] * (i % 3) if i % 7 else None,
            }
            for i in range(count)
        ]
    )

    for first, length in ((0, count), (1, 20), (8, 8), (13, 5), (29, 1)):
        expected = [
            record._replace(offset=index) for index, record in enumerate(records(encode(whole))[first : first + length])
        ]
        assert records(encode(whole.slice(first, length))) == expected


def test_columns_of_type_null_are_null_in_every_row() -> None:
    nulls = pa.nulls(2)

    encoded = encode(table(value=nulls, key=nulls, partition=nulls, timestamp=nulls, headers=nulls))

    assert records(encoded) == [Record(0, NOW_MS, None, None), Record(1, NOW_MS, None, None)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit_become_milliseconds(unit: str) -> None:
    column = pa.array([1_700_000_000], pa.timestamp("s")).cast(pa.timestamp(unit, "Europe/Berlin"))

    (record,) = records(encode(table(value=[b""], timestamp=column)))

    assert record.timestamp == 1_700_000_000_000


def test_the_newest_timestamp_is_the_batchs_whatever_the_order() -> None:
    column = pa.array([20, 50, 10], pa.timestamp("ms"))

    (encoded,) = encode(table(value=[b""] * 3, timestamp=column))

    header = parse_header(encoded.batch)
    assert (header.base_timestamp, header.max_timestamp) == (20, 50)
    assert [record.timestamp for record in records([encoded])] == [20, 50, 10]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_as_asked(compression: str) -> None:
    rows = table(value=[b"the same again and again"] * 500)

    (encoded,) = encode(rows, compression=compression)

    assert parse_header(encoded.batch).codec.name.lower() == compression
    assert len(encoded.batch) < rows.nbytes / 2
    assert values([encoded]) == [b"the same again and again"] * 500


def test_a_batch_that_compression_would_make_larger_is_left_as_it_is() -> None:
    (encoded,) = encode(table(value=[b"x"]), compression="gzip")

    assert parse_header(encoded.batch).codec is Codec.NONE


def test_a_compression_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no compression 'brotli', only none, gzip, snappy, lz4, zstd"):
        Encoder(compression="brotli", now_ms=0)


def test_rows_are_cut_into_batches_of_bounded_size() -> None:
    rows = table(value=[bytes([i]) * 100 for i in range(100)])

    encoded = encode(rows, batch_bytes_max=1000)

    assert all(800 < len(each.batch) <= 1000 for each in encoded[:-1])
    assert values(encoded) == rows.column("value").to_pylist()


def test_a_record_larger_than_usual_gets_a_batch_of_its_own() -> None:
    large = bytes(1_000_000)
    rows = table(value=[b"a", b"b", large, b"c"])

    encoded = encode(rows)

    assert [each.record_count for each in encoded] == [2, 1, 1]
    assert values(encoded) == [b"a", b"b", large, b"c"]


def test_the_largest_record_a_broker_takes_is_taken() -> None:
    overhead = len(encode(table(value=[bytes(1_000_000)]))[0].batch) - 1_000_000
    largest = BATCH_BYTES_MAX - overhead

    (encoded,) = encode(table(value=[bytes(largest)]))

    assert len(encoded.batch) == BATCH_BYTES_MAX == TopicConfig().max_message_bytes
    with pytest.raises(RowRefused, match="row 1 cannot be written: it takes 1048589 bytes, and a batch has at most"):
        encode(table(value=[b"", bytes(largest + 1)]))


def test_a_bound_that_leaves_space_for_no_record_refuses_the_first() -> None:
    with pytest.raises(RowRefused, match="row 0 cannot be written: it takes 68 bytes, and a batch has at most 10"):
        encode(table(value=[b""]), batch_bytes_max=10)


def test_rows_with_keys_go_where_the_java_client_sends_them() -> None:
    rows = table(key=["", "a", "ab", "abc", "abcd", "abcde", "customer-4711"], value=[b""] * 7)

    encoded = encode(rows, 7)

    placed = {record.key: each.partition.partition for each in encoded for record in decode_records(each.batch)}
    assert placed == {b"": 2, b"a": 5, b"ab": 0, b"abc": 4, b"abcd": 5, b"abcde": 4, b"customer-4711": 6}


def test_a_named_partition_counts_and_not_the_key() -> None:
    rows = table(key=["a", "a"], value=[b"1", b"2"], partition=pa.array([6, None], pa.int64()))

    encoded = encode(rows, 7)

    assert [(each.partition.partition, values([each])) for each in encoded] == [(5, [b"2"]), (6, [b"1"])]


def test_rows_without_a_key_fill_batches_in_one_partition_after_another() -> None:
    rows = table(value=[bytes(80)] * 30)

    encoded = encode(rows, 3, batch_bytes_max=1000 + 61, first_partition=2)

    assert [(each.partition.partition, each.record_count) for each in encoded] == [(0, 10), (1, 10), (2, 10)]


def test_rows_without_a_key_go_on_where_the_last_rows_ended() -> None:
    encoder = Encoder(now_ms=NOW_MS, batch_bytes_max=1000 + 61, first_partition=0)
    rows = table(value=[bytes(80)] * 15)

    placed = [
        (each.partition.partition, each.record_count)
        for _ in range(2)
        for each in encoder.encode(rows, {"orders": 3}, "orders")
    ]

    assert placed == [(0, 10), (1, 5), (1, 5), (2, 10)]


def test_rows_without_a_key_stay_in_the_first_partition_if_they_have_to() -> None:
    encoder = Encoder(now_ms=NOW_MS, batch_bytes_max=1000 + 61, first_partition=5, is_one_partition=True)
    rows = table(value=[bytes(80)] * 15)

    placed = [each.partition.partition for _ in range(2) for each in encoder.encode(rows, {"orders": 3}, "orders")]

    assert set(placed) == {2}


def test_the_clock_says_where_rows_without_a_key_begin() -> None:
    rows = table(value=[b""])
    firsts = {Encoder(now_ms=now_ms).encode(rows, {"orders": 4}, "orders")[0].partition for now_ms in range(4)}

    assert len(firsts) == 4


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_each_row_may_name_its_topic(kind: Any) -> None:
    rows = table(topic=pa.array(["b", "a", "b"]).cast(kind), value=[b"1", b"2", b"3"])

    encoded = Encoder(now_ms=0, first_partition=1).encode(rows.slice(1), {"a": 1, "b": 2, "c": 9})

    assert [(str(each.partition), values([each])) for each in encoded] == [("a-0", [b"2"]), ("b-1", [b"3"])]


def test_a_topic_said_counts_and_not_the_column() -> None:
    rows = table(topic=[None, "nowhere"], value=[b"1", b"2"])

    assert values(encode(rows)) == [b"1", b"2"]


HEADER_WITHOUT_A_KEY = pa.array([[], [{"key": None, "value": b""}]], HEADERS_TYPE)
HEADER_OF_NOTHING = pa.array([[], [None]], HEADERS_TYPE)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"topic": ["orders", None]}, "it names no topic"),
        ({"topic": ["orders", "nowhere"]}, "there is no topic 'nowhere'"),
        ({"partition": [0, 1]}, "topic orders has 1 partition, 0, and no partition 1"),
        ({"partition": [0, -1]}, "topic orders has 1 partition, 0, and no partition -1"),
        ({"timestamp": pa.array([0, -1], pa.timestamp("ms"))}, "its timestamp is before 1970"),
        ({"headers": HEADER_WITHOUT_A_KEY}, "one of its headers has no key"),
        ({"headers": HEADER_OF_NOTHING}, "one of its headers has no key"),
    ],
)
def test_a_row_that_cannot_be_written_is_named_by_its_number(columns: dict[str, Any], reason: str) -> None:
    encoder = Encoder(now_ms=NOW_MS)
    topic = None if "topic" in columns else "orders"
    encoder.encode(table(value=[b""] * 10), {"orders": 1}, "orders")

    with pytest.raises(RowRefused, match=f"row 11 cannot be written: {reason}") as refused:
        encoder.encode(table(value=[b"", b""], **columns), {"orders": 1}, topic)

    assert refused.value.row == 11


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [b""]}, "rows need a column value; these have key"),
        ({"value": [1]}, "the column value is int64, and has to be binary or string"),
        ({"value": [b""], "key": [1.5]}, "the column key is double, and has to be binary or string"),
        ({"value": [b""], "partition": ["1"]}, "the column partition is string, and has to be int32"),
        ({"value": [b""], "partition": [2**40]}, "the column partition is int64, and has to be int32"),
        ({"value": [b""], "timestamp": [5]}, "the column timestamp is int64, and has to be timestamp"),
        ({"value": [b""], "headers": [["h"]]}, r"the column headers is list<.*>, and has to be array<struct<key"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        encode(table(**columns))


def test_rows_without_any_topic_are_refused() -> None:
    with pytest.raises(ColumnError, match="rows need a column topic, or all of them one topic"):
        Encoder(now_ms=0).encode(table(value=[b""]), {"orders": 1})
    with pytest.raises(ColumnError, match=r"the column topic is list<.*>, and has to be string"):
        Encoder(now_ms=0).encode(table(value=[b""], topic=[["x"]]), {"orders": 1})


fields = st.none() | st.binary(max_size=20)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": fields}), min_size=1, max_size=3
)
row_lists = st.lists(
    st.fixed_dictionaries({"key": fields, "value": fields, "headers": headers, "timestamp": st.integers(0, NOW_MS)}),
    min_size=1,
    max_size=40,
)
SENT = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE), ("timestamp", pa.timestamp("ms", "UTC"))]
)


@given(row_lists, st.integers(1, 5), st.integers(300, 2000), st.sampled_from([codec.name.lower() for codec in Codec]))
@settings(max_examples=150, deadline=None)
def test_rows_come_back_as_they_were(
    rows: list[dict[str, Any]], partitions: int, batch_bytes_max: int, compression: str
) -> None:
    sent = pa.RecordBatch.from_pylist(rows, SENT)

    encoded = encode(sent, partitions, batch_bytes_max=batch_bytes_max, compression=compression)

    received = []
    for each in encoded:
        decoder = Decoder(each.partition, SENT.names, 0, 1 << 62)
        received += [*decoder.feed(memoryview(each.batch)), *decoder.finish()]
    rows_received = [row for each in received for row in each.to_pylist()]
    assert sorted(map(repr, rows_received)) == sorted(map(repr, sent.to_pylist()))
