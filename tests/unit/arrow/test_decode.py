"""Fetched batches to Arrow: what becomes a row, how rows are cut, and what damage is called."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.arrow import row_builder
from flowstone.arrow.decode import Decoder
from flowstone.arrow.schema import COLUMNS, schema
from flowstone.kernel.columns import Full
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    CorruptBatch,
    Record,
    build_batch,
    encode_header,
    parse_header,
    rewrite,
)

ORDERS = TopicPartition("orders", 3)
ALL = (*COLUMNS, "headers")
OFFSET_MAX = (1 << 63) - 1


def records(first: int, count: int, **fields: Any) -> list[Record]:
    return [
        Record(offset, 1000 + offset, None, b"v%d" % offset)._replace(**fields)
        for offset in range(first, first + count)
    ]


def batch(first: int, count: int, **options: Any) -> bytes:
    return build_batch(records(first, count), base_offset=first, **options)


def decode(
    data: bytes, columns: tuple[str, ...] = ("offset",), start: int = 0, end: int = OFFSET_MAX, **options: Any
) -> list[Any]:
    decoder = Decoder(ORDERS, columns, start, end, **options)
    batches = [*decoder.feed(memoryview(data)), *decoder.finish()]
    for each in batches:
        each.validate(full=True)
        assert each.schema.equals(schema(columns))
    return batches


def rows(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for each in batches for row in each.to_pylist()]


def offsets(batches: list[Any]) -> list[int]:
    return [offset for each in batches for offset in each.column("offset").to_pylist()]


def test_a_row_has_all_that_a_record_has() -> None:
    record = Record(7, 1_700_000_000_123, b"k", b"v", (("h", b"x"), ("n", None)))

    (row,) = rows(decode(build_batch([record], base_offset=7), ALL))

    assert row.pop("timestamp").isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert row == {
        "key": b"k",
        "value": b"v",
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
    }


def test_what_a_record_does_not_have_is_null() -> None:
    (row,) = rows(decode(build_batch([Record(0, 0, None, None)]), ("key", "value", "headers")))

    assert row == {"key": None, "value": None, "headers": None}


def test_columns_come_in_the_order_asked_for() -> None:
    (only,) = decode(batch(0, 2), ("topic", "value"))

    assert only.to_pydict() == {"topic": ["orders", "orders"], "value": [b"v0", b"v1"]}


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_read(codec: Codec) -> None:
    assert rows(decode(batch(0, 100, codec=codec), ("value",))) == [{"value": b"v%d" % i} for i in range(100)]


def test_only_offsets_of_the_range_become_rows() -> None:
    data = batch(0, 10) + batch(10, 10) + batch(20, 10) + batch(30, 10)

    assert offsets(decode(data, start=13, end=25)) == list(range(13, 25))


def test_a_range_of_which_nothing_is_there_yields_nothing() -> None:
    assert decode(batch(0, 10), start=10, end=20) == []
    assert decode(batch(20, 10), start=10, end=20) == []
    assert decode(b"", start=10, end=20) == []
    assert decode(batch(0, 10), start=5, end=5) == []


def test_batches_are_as_long_as_asked_and_span_record_batches() -> None:
    data = b"".join(batch(first, 7) for first in range(0, 70, 7))

    sizes = [each.num_rows for each in decode(data, rows_max=20)]

    assert sizes == [20, 20, 20, 10]
    assert offsets(decode(data, rows_max=20)) == list(range(70))


def test_a_batch_that_is_full_leaves_before_more_is_fed() -> None:
    decoder = Decoder(ORDERS, ("offset",), 0, 100, rows_max=5)

    assert [each.num_rows for each in decoder.feed(memoryview(batch(0, 10)))] == [5, 5]
    assert list(decoder.finish()) == []


def test_the_bytes_fed_may_change_afterwards() -> None:
    decoder, data = Decoder(ORDERS, ("value",), 0, 100), bytearray(batch(0, 3))
    assert list(decoder.feed(memoryview(data))) == []

    data[:] = bytes(len(data))
    del data[:]

    assert rows(list(decoder.finish())) == [{"value": b"v0"}, {"value": b"v1"}, {"value": b"v2"}]


def test_what_is_fed_twice_becomes_rows_once() -> None:
    decoder = Decoder(ORDERS, ("offset",), 0, 100)
    fed = [*decoder.feed(memoryview(batch(0, 5))), *decoder.feed(memoryview(batch(0, 5) + batch(5, 5)))]

    assert offsets([*fed, *decoder.finish()]) == list(range(10))
    assert decoder.position == 10


def test_log_append_time_is_the_batchs_own() -> None:
    appended = rewrite(batch(0, 2), log_append_time=5_000)

    batches = decode(appended, ("timestamp", "timestampType"))

    assert [(row["timestamp"].timestamp(), row["timestampType"]) for row in rows(batches)] == [(5.0, 1)] * 2


def test_rows_of_both_timestamp_types_may_meet_in_one_batch() -> None:
    data = batch(0, 2) + rewrite(batch(2, 3), log_append_time=5_000) + batch(5, 1)

    (only,) = decode(data, ("timestampType",))

    assert only.column("timestampType").to_pylist() == [0, 0, 1, 1, 1, 0]


def test_an_empty_batch_that_compaction_left_is_passed_over() -> None:
    header = parse_header(batch(5, 5))._replace(record_count=0)

    decoder = Decoder(ORDERS, ("offset",), 0, 100)

    assert list(decoder.feed(memoryview(encode_header(header, b"")))) == []
    assert decoder.position == 10


def test_control_batches_are_no_rows() -> None:
    data = batch(0, 2) + batch(2, 1, producer_id=1, is_transactional=True, is_control=True) + batch(3, 2)

    assert offsets(decode(data)) == [0, 1, 3, 4]


def test_aborted_records_are_seen_only_by_those_who_read_uncommitted() -> None:
    data = batch(0, 2, producer_id=1, is_transactional=True) + batch(2, 2)

    def read(read_committed: bool) -> list[int]:
        decoder = Decoder(ORDERS, ("offset",), 0, 100, read_committed=read_committed)
        return offsets([*decoder.feed(memoryview(data), [(1, 0)]), *decoder.finish()])

    assert (read(True), read(False)) == ([2, 3], [0, 1, 2, 3])


def test_a_header_key_that_is_not_text_is_read_with_replacements() -> None:
    good = build_batch([Record(0, 0, None, None, (("hh", b""), ("größe", b"")))])
    payload = good[HEADER_BYTES:].replace(b"hh", b"\xffh")
    data = encode_header(parse_header(good), payload) + payload

    (row,) = rows(decode(data, ("headers",)))

    assert [header["key"] for header in row["headers"]] == ["\N{REPLACEMENT CHARACTER}h", "größe"]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {full: 5 if full is Full.HEADERS else 100 for full in Full}
    monkeypatch.setattr(row_builder, "_LIMITS", limits)
    for name in ("DATA_BYTES_MIN", "HEADERS_MIN", "DATA_BYTES_MAX"):
        monkeypatch.setattr(row_builder, name, 1)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"value": bytes(30)}, [3, 3, 3, 1]),
        ({"key": bytes(60)}, [1] * 10),
        ({"value": bytes(500)}, [1] * 10),
        ({"headers": (("h", None),) * 2}, [2] * 5),
        ({"headers": (("h" * 24, b""),) * 2}, [2] * 5),
        ({"headers": (("", bytes(45)),) * 2}, [1] * 10),
        ({"headers": (("", None),) * 9}, [1] * 10),
    ],
)
def test_a_batch_is_cut_before_a_column_becomes_too_large(fields: dict[str, Any], sizes: list[int]) -> None:
    data = build_batch(records(0, 10, **fields))

    batches = decode(data, ("key", "value", "headers", "offset"))

    assert [each.num_rows for each in batches] == sizes
    assert offsets(batches) == list(range(10))
    for name, value in fields.items():
        expected = [{"key": key, "value": each} for key, each in value] if name == "headers" else value
        assert all(row[name] == expected for row in rows(batches))


def damaged(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(damaged(batch(10, 5), 70), "checksum does not match", id="a byte"),
        pytest.param(batch(10, 5)[:-1], "cut off", id="the end"),
        pytest.param(batch(10, 5)[:40], "too few for a batch header", id="half a header"),
        pytest.param(damaged(batch(10, 5), 16), "no message format", id="the format"),
        pytest.param(damaged(batch(10, 5), 0), "no batch has offsets", id="a negative offset"),
    ],
)
def test_damage_is_named_with_topic_partition_and_offset(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatch, match=rf"orders-3 is damaged at or after offset 10: .*{reason}"):
        decode(batch(0, 10) + data)


def sealed(header: Any, payload: bytes) -> bytes:
    return encode_header(header, payload) + payload


def test_a_malformed_record_with_a_good_checksum_is_named() -> None:
    good = batch(10, 5)
    data = sealed(parse_header(good), good[HEADER_BYTES:-1])

    with pytest.raises(CorruptBatch, match="record 4 of the batch at 10 is malformed: truncated"):
        decode(data)


def test_a_payload_that_is_not_of_its_codec_is_damage() -> None:
    header = parse_header(batch(0, 5, codec=Codec.LZ4))

    with pytest.raises(CorruptBatch, match="orders-3 is damaged at or after offset 0: lz4"):
        decode(sealed(header, b"not lz4 at all"))


def test_a_codec_that_does_not_exist_is_damage() -> None:
    header = parse_header(batch(0, 5))._replace(attributes=7)

    with pytest.raises(CorruptBatch, match=r"orders-3 .*no codec 7"):
        decode(sealed(header, b""))


fields = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3).map(tuple)
drawn_rows = st.lists(st.tuples(st.integers(0, 2**40), fields, fields, headers), max_size=40)


@given(drawn_rows, st.integers(1, 50), st.lists(st.integers(1, 9), min_size=1), st.sampled_from(Codec), st.booleans())
@settings(max_examples=150, deadline=None)
def test_rows_are_the_records_however_they_are_cut(
    drawn: list[Any], rows_max: int, batch_sizes: list[int], codec: Codec, appended: bool
) -> None:
    all_records = [Record(offset, *row) for offset, row in enumerate(drawn)]
    decoder = Decoder(ORDERS, ALL, 0, OFFSET_MAX, rows_max=rows_max)
    batches, first = [], 0
    while first < len(all_records):
        some = all_records[first : first + batch_sizes[first % len(batch_sizes)]]
        data = build_batch(some, base_offset=first, codec=codec)
        batches += decoder.feed(memoryview(rewrite(data, log_append_time=77) if appended else data))
        first += len(some)
    batches += decoder.finish()

    assert [each.num_rows for each in batches[:-1]] == [rows_max] * (len(batches) - 1)
    table = pa.Table.from_batches(batches, schema(ALL))
    table.validate(full=True)
    assert table.column("offset").to_pylist() == list(range(len(all_records)))
    assert table.column("key").to_pylist() == [record.key for record in all_records]
    assert table.column("value").to_pylist() == [record.value for record in all_records]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [
        1000 * (77 if appended else record.timestamp) for record in all_records
    ]
    assert table.column("headers").to_pylist() == [
        [{"key": key, "value": value} for key, value in record.headers] or None for record in all_records
    ]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_to_a_header_does_more_than_raise(data: st.DataObject) -> None:
    """With the checksum made right again, as a hostile peer would."""
    good = batch(0, 5)
    header = parse_header(good)
    changes = {
        name: data.draw(st.sampled_from([0, 1, -1, 2**15 - 1, -(2**15)]) | st.integers(-(2**15), 2**15 - 1), name)
        for name in (
            "base_offset",
            "attributes",
            "last_offset_delta",
            "base_timestamp",
            "max_timestamp",
            "record_count",
        )
    }
    hostile = sealed(header._replace(**changes), good[HEADER_BYTES:])

    try:
        batches = decode(hostile, ALL)
    except CorruptBatch:
        return
    assert sum(each.num_rows for each in batches) in (0, 5)
