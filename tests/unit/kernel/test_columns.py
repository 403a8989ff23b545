"""Records into columns, asked of both forms; then the two held equal over generated and damaged payloads."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.kernel import RecordsStatus, columns_twin
from flowstone.kernel.columns import Batch, Columns, Full
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

try:
    from flowstone.kernel import columns_native
except ImportError:
    FORMS = [columns_twin]
else:
    FORMS = [columns_twin, columns_native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition("_")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

ALL = ("key", "value", "offset", "timestamp", "headers")
OFFSET_MAX = (1 << 63) - 1
RECORDS = [
    Record(0, 100, b"k", b"value"),
    Record(1, 90, None, None, (("h", b"x"), ("n", None))),
    Record(2, 110, b"", b""),
]


def payload_of(records: list[Record]) -> bytes:
    return build_batch(records)[HEADER_BYTES:]


def batch_of(payload: bytes, record_count: int, **changes: int) -> Batch:
    batch = Batch(
        size=len(payload),
        record_count=record_count,
        base_offset=0,
        last_offset_delta=1000,
        base_timestamp=100,
        uses_log_append_time=0,
        start_offset=0,
        end_offset=OFFSET_MAX,
    )
    return batch._replace(**changes)


def columns_for(wanted: tuple[str, ...] = ALL, rows: int = 100, capacity: int = 1000, **capacities: int) -> Columns:
    named = {Full[name]: size for name, size in capacities.items()}
    return Columns(wanted, rows, {**dict.fromkeys(Full, capacity), **named}, pa.allocate_buffer)


def decode(form: ModuleType, payload: bytes, columns: Columns) -> RecordsStatus:
    form.decode_columns(pa.py_buffer(payload), 0, columns)
    return RecordsStatus(columns.call.status)


def binary(columns: Columns, full: Full, count: int) -> list[bytes | None]:
    column = columns.binaries[full]
    buffers = [column.validity, column.offsets, column.data]
    array = pa.Array.from_buffers(pa.binary(), count, buffers, column.state.null_count)
    array.validate(full=True)
    values: list[bytes | None] = array.to_pylist()
    assert values.count(None) == column.state.null_count
    return values


def numbers(buffer: Any, kind: Any, count: int) -> list[int]:
    values: list[int] = pa.Array.from_buffers(kind, count, [None, buffer]).to_pylist()
    return values


def rows(columns: Columns) -> list[Record]:
    """What the columns hold, as records; timestamps in microseconds."""
    call = columns.call
    count = call.row_count
    if not count:
        return []
    header_keys = binary(columns, Full.HEADER_KEY, call.header_count)
    header_values = binary(columns, Full.HEADER_VALUE, call.header_count)
    ends = numbers(columns.header_offsets, pa.int32(), count + 1)
    headers = [
        tuple((header_keys[i].decode(), header_values[i]) for i in range(start, end)) for start, end in pairwise(ends)
    ]
    has_headers = pa.Array.from_buffers(pa.bool_(), count, [None, columns.header_validity]).to_pylist()
    assert has_headers == [bool(each) for each in headers]
    assert call.rows_without_headers == has_headers.count(False)
    return [
        Record(*row)
        for row in zip(
            numbers(columns.offsets, pa.int64(), count),
            numbers(columns.timestamps, pa.int64(), count),
            binary(columns, Full.KEY, count),
            binary(columns, Full.VALUE, count),
            headers,
            strict=True,
        )
    ]


def in_microseconds(records: list[Record]) -> list[Record]:
    return [record._replace(timestamp=record.timestamp * 1000) for record in records]


@every_form
def test_every_field_of_a_record_has_its_column(form: ModuleType) -> None:
    payload, columns = payload_of(RECORDS), columns_for()
    columns.begin(batch_of(payload, 3))

    assert decode(form, payload, columns) is RecordsStatus.VALID

    assert rows(columns) == in_microseconds(RECORDS)


@every_form
def test_rows_of_later_batches_follow(form: ModuleType) -> None:
    payload, columns = payload_of(RECORDS), columns_for()
    for base_offset in (10, 20, 30):
        columns.begin(batch_of(payload, 3, base_offset=base_offset))
        decode(form, payload, columns)

    assert [row.offset for row in rows(columns)] == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert [row.value for row in rows(columns)] == [b"value", None, b""] * 3


@every_form
def test_offsets_come_from_deltas_so_that_holes_stay_holes(form: ModuleType) -> None:
    payload, columns = payload_of([Record(3, 0, None, b"a"), Record(900, 0, None, b"b")]), columns_for()
    columns.begin(batch_of(payload, 2, base_offset=5000))

    decode(form, payload, columns)

    assert [row.offset for row in rows(columns)] == [5003, 5900]


@every_form
def test_only_wanted_offsets_become_rows(form: ModuleType) -> None:
    payload, columns = payload_of([Record(i, 0, None, b"%d" % i) for i in range(10)]), columns_for()
    columns.begin(batch_of(payload, 10, base_offset=100, start_offset=103, end_offset=106))

    assert decode(form, payload, columns) is RecordsStatus.VALID

    assert [row.value for row in rows(columns)] == [b"3", b"4", b"5"]


@every_form
def test_with_log_append_time_all_records_have_one_timestamp(form: ModuleType) -> None:
    payload, columns = payload_of(RECORDS), columns_for()
    columns.begin(batch_of(payload, 3, base_timestamp=7, uses_log_append_time=1))

    decode(form, payload, columns)

    assert [row.timestamp for row in rows(columns)] == [7000, 7000, 7000]


@every_form
@pytest.mark.parametrize(
    ("base_timestamp", "delta", "microseconds"),
    [
        (-1, 0, -1000),
        (0, -(2**63), -(2**63)),
        (2**63 - 1, 1, 2**63 - 1),
        (-(2**63), -1, -(2**63)),
        (2**62, 0, 2**63 - 1),
        (9_223_372_036_854_775, 0, 9_223_372_036_854_775_000),
        (9_223_372_036_854_775, 1, 2**63 - 1),
    ],
)
def test_a_timestamp_beyond_microseconds_becomes_the_furthest(
    form: ModuleType, base_timestamp: int, delta: int, microseconds: int
) -> None:
    payload = payload_of([Record(0, 0, None, None), Record(1, delta, None, None)])
    columns = columns_for()
    columns.begin(batch_of(payload, 2, base_timestamp=base_timestamp, start_offset=1))

    decode(form, payload, columns)

    assert [row.timestamp for row in rows(columns)] == [microseconds]


@every_form
def test_a_column_that_is_not_wanted_has_no_buffers(form: ModuleType) -> None:
    payload, columns = payload_of(RECORDS), columns_for(("value",))
    columns.begin(batch_of(payload, 3))

    assert decode(form, payload, columns) is RecordsStatus.VALID

    assert list(columns.binaries) == [Full.VALUE]
    assert (columns.offsets, columns.timestamps, columns.header_offsets) == (None, None, None)
    assert binary(columns, Full.VALUE, 3) == [b"value", None, b""]


@every_form
@pytest.mark.parametrize(
    ("capacities", "full", "needed", "rows_before"),
    [
        ({"KEY": 0}, Full.KEY, 1, 0),
        ({"VALUE": 4}, Full.VALUE, 5, 0),
        ({"HEADERS": 1}, Full.HEADERS, 2, 1),
        ({"HEADER_KEY": 1}, Full.HEADER_KEY, 2, 1),
        ({"HEADER_VALUE": 0}, Full.HEADER_VALUE, 1, 1),
    ],
)
def test_a_full_column_stops_before_the_record_and_says_what_it_needs(
    form: ModuleType, capacities: dict[str, int], full: Full, needed: int, rows_before: int
) -> None:
    payload, columns = payload_of(RECORDS), columns_for(**capacities)
    columns.begin(batch_of(payload, 3))

    assert decode(form, payload, columns) is RecordsStatus.VALID

    assert (columns.call.full, columns.call.needed, columns.call.row_count) == (full, needed, rows_before)
    columns.grow(full, columns.used(full) + needed)
    assert decode(form, payload, columns) is RecordsStatus.VALID
    assert columns.call.full == Full.NOT_FULL
    assert rows(columns) == in_microseconds(RECORDS)


@every_form
def test_a_batch_goes_on_in_other_buffers(form: ModuleType) -> None:
    payload, columns = payload_of(RECORDS), columns_for(rows=2)
    columns.begin(batch_of(payload, 3))
    decode(form, payload, columns)
    first = rows(columns)
    assert (columns.call.full, len(first)) == (Full.ROWS, 2)

    columns.renew(dict.fromkeys(Full, 10))
    decode(form, payload, columns)

    assert first + rows(columns) == in_microseconds(RECORDS)


@every_form
@pytest.mark.parametrize(
    ("records", "last_offset_delta"),
    [
        pytest.param(payload_of([Record(4, 0, None, None)]), 3, id="beyond the batch's last"),
        pytest.param(payload_of([Record(4, 0, None, None)]) * 2, 9, id="twice"),
        pytest.param(b"\x0c\x00\x00\x01\x01\x01\x00", 9, id="below zero"),
    ],
)
def test_an_offset_that_cannot_be_is_refused(form: ModuleType, records: bytes, last_offset_delta: int) -> None:
    columns = columns_for()
    columns.begin(batch_of(records, 2, last_offset_delta=last_offset_delta))

    assert decode(form, records, columns) is RecordsStatus.BAD_OFFSET_DELTA


@every_form
@pytest.mark.parametrize(
    ("cut", "count", "status"),
    [(-1, 3, RecordsStatus.TRUNCATED), (None, 2, RecordsStatus.TRAILING_BYTES), (None, 4, RecordsStatus.TRUNCATED)],
)
def test_damage_is_named_and_the_rows_before_it_stay(
    form: ModuleType, cut: int | None, count: int, status: RecordsStatus
) -> None:
    payload, columns = payload_of(RECORDS)[:cut], columns_for()
    columns.begin(batch_of(payload, count))

    assert decode(form, payload, columns) is status

    complete = min(count, 2 if cut else 3)
    assert (columns.call.record_index, rows(columns)) == (complete, in_microseconds(RECORDS[:complete]))


@every_form
@pytest.mark.parametrize(("position", "size"), [(-1, 1), (0, -1), (0, 5), (2, 3)])
def test_a_range_outside_the_payload_is_refused(form: ModuleType, position: int, size: int) -> None:
    columns = columns_for()
    columns.begin(batch_of(b"", 1, size=size))

    with pytest.raises(ValueError, match="outside a buffer of 4 bytes"):
        form.decode_columns(pa.py_buffer(b"1234"), position, columns)


fields = st.none() | st.binary(max_size=20)
timestamps = st.integers(-(2**61), 2**61) | st.integers(0, 1000)
headers = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    """Offsets rise, with holes."""
    offset, records = -1, []
    for row in draw(st.lists(st.tuples(timestamps, fields, fields, headers), min_size=1, max_size=12)):
        offset += draw(st.integers(1, 3))
        records.append(Record(offset, *row))
    return records


byte_edits = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
)
wanted_columns = st.lists(st.sampled_from(ALL), min_size=1, unique=True).map(tuple) | st.just(ALL)
capacities = st.integers(0, 40) | st.just(1000)


def fill(form: ModuleType, payload: bytes, batch: Batch, columns: Columns) -> list[Any]:
    """Everything that happens until the batch is done, columns growing as they must, rows taken when they are full."""
    seen: list[Any] = []
    columns.begin(batch)
    while True:
        form.decode_columns(pa.py_buffer(payload), 0, columns)
        call = columns.call
        seen.append((call.status, call.full, call.needed, call.position, call.record_index, call.last_delta))
        seen.append(contents(columns))
        if call.status or not call.full:
            return seen
        if call.full == Full.ROWS:
            columns.renew(dict.fromkeys(Full, 3))
        else:
            columns.grow(Full(call.full), columns.used(Full(call.full)) + call.needed)


def contents(columns: Columns) -> list[Any]:
    """The used part of every buffer."""
    call = columns.call
    counts = {full: call.header_count if full > Full.HEADERS else call.row_count for full in columns.binaries}
    held: list[Any] = [call.row_count, call.header_count, call.rows_without_headers]
    held += [numbers(each, pa.int64(), call.row_count) for each in (columns.offsets, columns.timestamps) if each]
    if columns.header_offsets:
        held.append(numbers(columns.header_offsets, pa.int32(), call.row_count + 1))
        held.append(pa.Array.from_buffers(pa.bool_(), call.row_count, [None, columns.header_validity]).to_pylist())
    held += [binary(columns, full, count) for full, count in counts.items()]
    return held


def assert_forms_agree(payload: bytes, batch: Batch, wanted: tuple[str, ...], row_capacity: int, capacity: int) -> None:
    native, twin = (
        fill(form, payload, batch, columns_for(wanted, row_capacity, capacity))
        for form in (columns_native, columns_twin)
    )
    assert native == twin


@needs_native
@given(record_lists(), wanted_columns, st.integers(1, 13), capacities, st.integers(0, 20), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_native_and_twin_agree_on_good_records(
    records: list[Record], wanted: tuple[str, ...], row_capacity: int, capacity: int, start: int, end: int
) -> None:
    payload = payload_of(records)
    batch = batch_of(payload, len(records), base_timestamp=records[0].timestamp, start_offset=start, end_offset=end)

    assert_forms_agree(payload, batch, wanted, row_capacity, capacity)


@needs_native
@given(record_lists(), byte_edits, st.integers(0, 5), wanted_columns, st.integers(1, 13), capacities)
@settings(max_examples=600, deadline=None)
def test_native_and_twin_agree_on_damaged_records(
    records: list[Record],
    edits: list[tuple[int, int]],
    cut: int,
    wanted: tuple[str, ...],
    row_capacity: int,
    capacity: int,
) -> None:
    payload = bytearray(payload_of(records))
    for position, byte in edits:
        payload[position % len(payload)] = byte
    damaged = bytes(payload[: len(payload) - cut])

    assert_forms_agree(damaged, batch_of(damaged, len(records)), wanted, row_capacity, capacity)


@needs_native
@given(st.binary(max_size=60), st.integers(-1, 5), st.integers(-(2**31), 2**31 - 1), capacities)
@settings(max_examples=300, deadline=None)
def test_native_and_twin_agree_on_arbitrary_bytes(payload: bytes, count: int, last_delta: int, capacity: int) -> None:
    assert_forms_agree(payload, batch_of(payload, count, last_offset_delta=last_delta), ALL, 3, capacity)


@given(record_lists())
@settings(max_examples=100, deadline=None)
def test_what_was_written_is_read(records: list[Record]) -> None:
    payload, columns = payload_of(records), columns_for()
    columns.begin(batch_of(payload, len(records), base_timestamp=records[0].timestamp))

    decode(FORMS[-1], payload, columns)

    limit = 2**63 - 1
    assert rows(columns) == [
        record._replace(timestamp=max(-limit - 1, min(record.timestamp * 1000, limit))) for record in records
    ]


@needs_native
def test_damaged_records_never_make_the_kernel_read_or_write_past_a_buffer() -> None:
    """In a process of its own, which dies at the first byte beyond the payload or beyond a column."""
    program = Path(__file__).with_name("guard_page_columns.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=60)


@needs_native
def test_a_library_without_the_calls_leaves_the_twins() -> None:
    """In a process of its own: the package's native modules stay as they are."""
    program = (
        "from flowstone.kernel import native; native.releasing_library = object();"
        "from flowstone.kernel.columns import decode_columns; from flowstone.kernel.batches import spread_rows;"
        "print(decode_columns.__module__, spread_rows.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "flowstone.kernel.columns_twin flowstone.kernel.batches_twin\n"
