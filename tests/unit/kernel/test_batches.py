"""Rows into partitions and records, asked of both forms; then the two held equal over generated and damaged columns."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.kernel import RecordsStatus, batches_twin, check_records
from flowstone.kernel.batches import BadRow, BinaryInput, Built, HeadersInput, NumberInput, Rows, RowStatus, Slots
from flowstone.kernel.batches_twin import murmur2

try:
    from flowstone.kernel import batches_native
except ImportError:
    FORMS = [batches_twin]
else:
    FORMS = [batches_twin, batches_native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition("_")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

NOW_MS = 1_700_000_000_000
# What the Java client answers: its own test vectors, and partitions its BuiltInPartitioner chose among seven.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = (b"", b"a", b"ab", b"abc", b"abcd", b"abcde", b"\xff\xfe\x80", b"customer-4711", "größe".encode(), b"x" * 1000)
PARTITIONS_OF_SEVEN = (2, 5, 0, 4, 5, 4, 3, 6, 4, 3)


def binary(values: list[bytes | None], kind: Any = None) -> BinaryInput:
    array = pa.array(values, kind or pa.binary())
    validity, offsets, data = array.buffers()
    return BinaryInput(offsets, validity, data, array.offset, kind in (pa.large_binary(), pa.large_string()))


def numbers(values: list[int | None], kind: Any) -> NumberInput:
    validity, data = pa.array(values, kind).buffers()
    return NumberInput(data, validity, 0)


def headers(lists: list[list[tuple[bytes | None, bytes | None]] | None]) -> HeadersInput:
    flat = [each for headers in lists for each in headers or ()]
    array = pa.array([headers and [0] * len(headers) for headers in lists], pa.list_(pa.int8()))
    validity, offsets = array.buffers()[:2]
    keys, values = binary([key for key, _ in flat]), binary([value for _, value in flat])
    return HeadersInput(offsets, validity, 0, len(flat), keys, values)


def slots_of(*partition_counts: int, keyless_bytes_max: int = 100, start: int = 0) -> Slots:
    return Slots(partition_counts, [(start, 0)] * len(partition_counts), keyless_bytes_max)


def spread(form: ModuleType, rows: Rows, slots: Slots) -> list[list[int]]:
    """The rows of each slot."""
    order, ends, _ = form.spread_rows(rows, slots)
    starts = [0, *ends[:-1]]
    return [list(order[start:end]) for start, end in zip(starts, ends, strict=True)]


def build(form: ModuleType, rows: Rows, capacity_bytes: int = 10_000) -> tuple[bytes, Built]:
    """All rows, in their order, as far as they fit."""
    builder = form.RecordBuilder(rows, form.spread_rows(rows, slots_of(1)), NOW_MS)
    out = bytearray(capacity_bytes + 10)
    built = builder.build(0, rows.row_count, out, 5, capacity_bytes)
    assert out[:5] == bytes(5)
    assert out[5 + built.size_bytes :] == bytes(len(out) - 5 - built.size_bytes)
    return bytes(out[5 : 5 + built.size_bytes]), built


@pytest.mark.parametrize(("key", "signed"), MURMUR2.items())
def test_murmur2_is_the_java_clients(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@every_form
def test_keys_go_where_the_java_client_sends_them(form: ModuleType) -> None:
    rows = Rows(len(KEYS), value=binary([b""] * len(KEYS)), key=binary(list(KEYS)))

    placed = spread(form, rows, slots_of(7))

    assert [next(slot for slot in range(7) if row in placed[slot]) for row in range(len(KEYS))] == list(
        PARTITIONS_OF_SEVEN
    )


@needs_native
def test_both_forms_hash_ten_thousand_keys_alike() -> None:
    randomness = random.Random(7)
    keys: list[bytes | None] = [randomness.randbytes(randomness.randrange(40)) for _ in range(10_000)]
    rows = Rows(len(keys), value=binary([None] * len(keys)), key=binary(keys))

    assert spread(batches_native, rows, slots_of(997)) == spread(batches_twin, rows, slots_of(997))


@every_form
def test_a_named_partition_counts_and_not_the_key(form: ModuleType) -> None:
    rows = Rows(
        3, value=binary([b"v"] * 3), key=binary([b"a", b"a", b"a"]), partition=numbers([1, None, 6], pa.int32())
    )

    assert spread(form, rows, slots_of(7)) == [[], [0], [], [], [], [1], [2]]


@every_form
@pytest.mark.parametrize("partition", [-1, 7, 2**31 - 1, -(2**31)])
def test_a_partition_that_is_not_there_is_named_with_its_row(form: ModuleType, partition: int) -> None:
    rows = Rows(2, value=binary([b"v"] * 2), partition=numbers([0, partition], pa.int32()))

    with pytest.raises(BadRow) as refused:
        form.spread_rows(rows, slots_of(7))

    assert (refused.value.status, refused.value.row) == (RowStatus.BAD_PARTITION, 1)


@every_form
def test_topics_have_their_partitions_in_a_row(form: ModuleType) -> None:
    rows = Rows(
        4,
        value=binary([b"v"] * 4),
        topic=numbers([1, 0, 1, 0], pa.int32()),
        partition=numbers([2, 1, 0, 1], pa.int32()),
    )

    assert spread(form, rows, slots_of(2, 3)) == [[], [1, 3], [2], [], [0]]


@every_form
def test_rows_without_a_key_fill_one_partition_then_the_next(form: ModuleType) -> None:
    value_bytes = 30  # and 20 around it: two rows fill 100 bytes
    rows = Rows(7, value=binary([bytes(value_bytes)] * 7))
    slots = slots_of(3, keyless_bytes_max=100, start=1)

    assert spread(form, rows, slots) == [[4, 5], [0, 1, 6], [2, 3]]

    assert (list(slots.keyless_partitions), list(slots.keyless_bytes)) == ([1], [50])


@every_form
def test_where_rows_without_a_key_go_survives_a_change_of_partitions(form: ModuleType) -> None:
    rows = Rows(1, value=binary([b""]))

    assert spread(form, rows, slots_of(2, start=7)) == [[], [0]]


@every_form
def test_rows_of_one_partition_keep_their_order(form: ModuleType) -> None:
    keys: list[bytes | None] = [b"%d" % (i % 5) for i in range(100)]
    rows = Rows(100, value=binary([b""] * 100), key=binary(keys))

    placed = spread(form, rows, slots_of(3))

    assert all(slot == sorted(slot) for slot in placed)
    assert sorted(row for slot in placed for row in slot) == list(range(100))


@every_form
def test_records_have_nulls_headers_and_timestamps(form: ModuleType) -> None:
    rows = Rows(
        3,
        value=binary([b"v", None, b""]),
        key=binary([None, b"k", b""]),
        timestamp=numbers([50, None, 40], pa.int64()),
        headers=headers([[(b"h", b"x"), (b"n", None)], None, []]),
    )

    payload, built = build(form, rows)

    assert payload == b"".join(
        (
            b"\x1c\x00\x00\x00\x01\x02v\x04\x02h\x02x\x02n\x01",
            b"\x18\x00" + batches_twin._varint(NOW_MS - 50) + b"\x02\x02k\x01\x00",
            b"\x0c\x00\x13\x04\x00\x00\x00",
        )
    )
    assert built == Built(3, len(payload), 3, 50, NOW_MS)


@every_form
def test_records_are_written_until_the_next_has_no_room(form: ModuleType) -> None:
    rows = Rows(5, value=binary([bytes(100)] * 5))
    one, _ = build(form, rows._replace(row_count=1))

    payload, built = build(form, rows, 3 * len(one) + 2)

    assert (built.record_count, built.next, built.size_bytes) == (3, 3, 3 * len(one))
    assert check_records(payload, 0, len(payload), 3).status is RecordsStatus.VALID


@every_form
def test_a_record_that_has_no_room_at_all_is_named_with_what_it_needs(form: ModuleType) -> None:
    rows = Rows(1, value=binary([bytes(100)]))
    one, _ = build(form, rows)

    with pytest.raises(BadRow) as refused:
        build(form, rows, len(one) - 1)

    assert (refused.value.status, refused.value.row) == (RowStatus.TOO_LARGE, 0)
    assert refused.value.needed_bytes == len(one)


@every_form
@pytest.mark.parametrize(
    ("rows", "status"),
    [
        (Rows(2, value=binary([b"", b""]), timestamp=numbers([0, -1], pa.int64())), RowStatus.BAD_TIMESTAMP),
        (Rows(2, value=binary([b"", b""]), headers=headers([None, [(None, b"v")]])), RowStatus.NULL_HEADER_KEY),
    ],
    ids=["before 1970", "a header without a key"],
)
def test_a_row_that_cannot_be_a_record_is_named(form: ModuleType, rows: Rows, status: RowStatus) -> None:
    with pytest.raises(BadRow) as refused:
        build(form, rows)

    assert (refused.value.status, refused.value.row) == (status, 1)


@every_form
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
def test_offsets_of_both_widths_are_read(form: ModuleType, kind: Any) -> None:
    values = ["a", None, "", "bcd"]
    narrow, _ = build(form, Rows(4, value=binary([value and value.encode() for value in values])))

    assert build(form, Rows(4, value=binary(values, kind)))[0] == narrow  # type: ignore[arg-type]


@every_form
@pytest.mark.parametrize(
    "bounds", [(-1, 0, 0, 0), (0, 2, 0, 0), (1, 0, 0, 0), (0, 1, -1, 0), (0, 1, 5, 6), (0, 1, 0, -1)]
)
def test_bounds_outside_the_rows_or_the_buffer_are_refused(form: ModuleType, bounds: tuple[int, int, int, int]) -> None:
    first, end, position, capacity_bytes = bounds
    rows = Rows(1, value=binary([b""]))
    builder = form.RecordBuilder(rows, form.spread_rows(rows, slots_of(1)), NOW_MS)

    with pytest.raises(ValueError, match="of 1"):
        builder.build(first, end, bytearray(10), position, capacity_bytes)


fields = st.none() | st.binary(max_size=20)


@st.composite
def row_columns(draw: st.DrawFn) -> Rows:
    count = draw(st.integers(1, 12))

    def column(of: Any) -> list[Any]:
        return draw(st.lists(of, min_size=count, max_size=count))

    header_key = st.binary(max_size=5)
    header = st.tuples(header_key | st.none() if draw(st.booleans()) else header_key, fields)
    return Rows(
        count,
        value=binary(column(fields)),
        key=draw(st.sampled_from([BinaryInput(), binary(column(fields), pa.large_binary())])),
        topic=numbers(column(st.integers(0, 1)), pa.int32()),
        partition=draw(st.sampled_from([NumberInput(), numbers(column(st.none() | st.integers(0, 3)), pa.int32())])),
        timestamp=numbers(column(st.none() | st.integers(-1, 2**62) | st.integers(0, 1000)), pa.int64()),
        headers=headers(column(st.none() | st.lists(header, max_size=3))),
    )


@st.composite
def damaged(draw: st.DrawFn, rows: Rows) -> Rows:
    """The rows with other bytes in the offsets of one of their columns."""

    def edit(offsets: Any) -> Any:
        data = bytearray(memoryview(offsets))
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return pa.py_buffer(bytes(data))

    name = draw(st.sampled_from(["value", "key", "headers"]))
    column = getattr(rows, name)
    return rows._replace(**{name: column._replace(offsets=edit(column.offsets))}) if column.offsets else rows


def everything(form: ModuleType, rows: Rows, capacity_bytes: int) -> list[Any]:
    seen: list[Any] = []
    slots = slots_of(4, 3, start=1)
    try:
        order, ends, _ = spread_of_rows = form.spread_rows(rows, slots)
        seen += [list(order), list(ends), list(slots.keyless_partitions), list(slots.keyless_bytes)]
        builder = form.RecordBuilder(rows, spread_of_rows, NOW_MS)
        first = 0
        for end in ends:
            while first < end:
                out = bytearray(capacity_bytes)
                built = builder.build(first, end, out, 0, capacity_bytes)
                seen += [built, bytes(out[: built.size_bytes])]
                first = built.next
    except BadRow as bad:
        seen.append((bad.status, bad.row, bad.status is RowStatus.TOO_LARGE and bad.needed_bytes))
    return seen


@needs_native
@given(row_columns(), st.integers(1, 200))
@settings(max_examples=300, deadline=None)
def test_native_and_twin_agree_on_rows(rows: Rows, capacity_bytes: int) -> None:
    assert everything(batches_native, rows, capacity_bytes) == everything(batches_twin, rows, capacity_bytes)


@needs_native
@given(row_columns().flatmap(damaged), st.integers(1, 200))
@settings(max_examples=300, deadline=None)
def test_native_and_twin_agree_on_damaged_columns(rows: Rows, capacity_bytes: int) -> None:
    assert everything(batches_native, rows, capacity_bytes) == everything(batches_twin, rows, capacity_bytes)


@needs_native
def test_the_kernel_never_reads_or_writes_past_a_buffer() -> None:
    """In a process of its own, which dies at the first byte beyond a column or beyond the records' room."""
    program = Path(__file__).with_name("guard_page_batches.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=60)


def misaligned(buffer: Any) -> Any:
    """The same bytes at an address that is no multiple of two."""
    area = pa.allocate_buffer(buffer.size + 1)  # itself at a multiple of 64
    memoryview(area)[1:] = memoryview(buffer)
    return area.slice(1)


@every_form
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_columns_may_lie_at_any_address(form: ModuleType, kind: Any) -> None:
    value = binary([b"a", None, b"bcd"], kind)
    topic, partition = numbers([0, 1, 0], pa.int32()), numbers([None, 1, 0], pa.int32())
    timestamp, listed = numbers([5, None, 7], pa.int64()), headers([[(b"k", b"v")], None, []])
    rows = Rows(3, value, value, topic, partition, timestamp, listed)
    moved = Rows(
        3,
        value._replace(offsets=misaligned(value.offsets)),
        value._replace(offsets=misaligned(value.offsets)),
        topic._replace(values=misaligned(topic.values)),
        partition._replace(values=misaligned(partition.values)),
        timestamp._replace(values=misaligned(timestamp.values)),
        listed._replace(offsets=misaligned(listed.offsets)),
    )
    assert moved.value.offsets.address % 2  # type: ignore[union-attr]

    assert everything(form, moved, 100) == everything(form, rows, 100)


@every_form
@pytest.mark.parametrize("nothing", [None, pa.foreign_buffer(0, 0)], ids=["no buffer", "a buffer at address 0"])
def test_a_column_of_empty_values_needs_no_data(form: ModuleType, nothing: Any) -> None:
    empty = binary([b"", b""])
    without_data = empty._replace(data=nothing)

    assert everything(form, Rows(2, without_data, without_data), 100) == everything(form, Rows(2, empty, empty), 100)


@every_form
@pytest.mark.parametrize("name", ["value", "key", "topic", "partition", "timestamp", "headers"])
@pytest.mark.parametrize("size", [0, 11])
def test_a_column_that_is_smaller_than_its_rows_is_refused(form: ModuleType, name: str, size: int) -> None:
    value = binary([b"a", b"b", b"c"])
    columns = {
        "value": value,
        "key": value,
        "topic": numbers([0, 0, 0], pa.int32()),
        "partition": numbers([0, 0, 0], pa.int32()),
        "timestamp": numbers([0, 0, 0], pa.int64()),
        "headers": headers([[(b"k", b"v")], [], []]),
    }
    buffer = "values" if isinstance(columns[name], NumberInput) else "offsets"
    cut = getattr(columns[name], buffer).slice(0, size)
    rows = Rows(3, **{**columns, name: columns[name]._replace(**{buffer: cut})})  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="too small for 3 values"):
        form.RecordBuilder(rows, form.spread_rows(rows, slots_of(1)), NOW_MS)


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="without partitions"):
        slots_of(3, 0)
