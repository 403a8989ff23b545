"""What the kernel says of records, asked of both forms; then the two held equal over generated and damaged payloads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.errors import ApiError
from flowstone.kernel import RecordsCheck, RecordsStatus, twin
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, decode_records, encode_header, parse_header

try:
    from flowstone.kernel import native
except ImportError:
    FORMS = [twin]
else:
    FORMS = [twin, native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

TWO = [Record(0, 100, b"k", b"v"), Record(1, 90, None, None, (("h", b"x"), ("n", None)))]


def payload_of(records: list[Record]) -> bytes:
    return build_batch(records)[HEADER_BYTES:]


def check(form: ModuleType, payload: bytes, count: int) -> RecordsCheck:
    result = form.check_records(payload, 0, len(payload), count)
    assert isinstance(result, RecordsCheck)
    return result


def varint(value: int) -> bytes:
    encoded, raw = bytearray(), (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def record(*fields: bytes, length: int | None = None) -> bytes:
    """A record of the given fields after the attributes byte."""
    body = b"\x00" + b"".join(fields)
    return varint(len(body) if length is None else length) + body


ZERO = varint(0)
NULL = varint(-1)


@every_form
def test_good_records_are_summed_up(form: ModuleType) -> None:
    assert check(form, payload_of(TWO), 2) == RecordsCheck(RecordsStatus.VALID, -1, 1, -10, 0, 0)


@every_form
def test_the_first_of_equal_maximum_timestamps_is_named(form: ModuleType) -> None:
    records = [Record(i, timestamp, b"", b"") for i, timestamp in enumerate([5, 9, 9, 2])]

    assert check(form, payload_of(records), 4) == RecordsCheck(RecordsStatus.VALID, -1, 0, -3, 4, 1)


@every_form
def test_no_records_in_no_bytes_is_valid(form: ModuleType) -> None:
    for empty in (b"", bytearray(), memoryview(b"")):
        assert form.check_records(empty, 0, 0, 0) == RecordsCheck(RecordsStatus.VALID, -1, 0, 0, 0, -1)


@every_form
@pytest.mark.parametrize(
    ("payload", "status"),
    [
        pytest.param(b"", RecordsStatus.TRUNCATED, id="no record at all"),
        pytest.param(b"\x80", RecordsStatus.TRUNCATED, id="half a length"),
        pytest.param(record(ZERO, ZERO, NULL, NULL, ZERO)[:-1], RecordsStatus.TRUNCATED, id="half a record"),
        pytest.param(b"\xff\xff\xff\xff\x10", RecordsStatus.BAD_VARINT, id="a length of 33 bits"),
        pytest.param(b"\x80\x80\x80\x80\x80\x00", RecordsStatus.BAD_VARINT, id="a length of six bytes"),
        pytest.param(record(b"\xff" * 9 + b"\x02"), RecordsStatus.BAD_VARINT, id="a timestamp of 65 bits"),
        pytest.param(record(b"\x80" * 10 + b"\x00"), RecordsStatus.BAD_VARINT, id="a timestamp of eleven bytes"),
        pytest.param(varint(-5), RecordsStatus.BAD_LENGTH, id="a negative length"),
        pytest.param(varint(0), RecordsStatus.BAD_LENGTH, id="an empty record"),
        pytest.param(record(ZERO, ZERO, NULL, NULL), RecordsStatus.BAD_LENGTH, id="no header count"),
        pytest.param(record(ZERO, ZERO, NULL, NULL, ZERO, b"x"), RecordsStatus.BAD_LENGTH, id="a byte too many"),
        pytest.param(record(ZERO, ZERO, varint(9), b"k"), RecordsStatus.BAD_LENGTH, id="a key beyond the record"),
        pytest.param(record(ZERO, varint(1), NULL, NULL, ZERO), RecordsStatus.BAD_OFFSET_DELTA, id="delta 1 first"),
        pytest.param(record(ZERO, varint(-1), NULL, NULL, ZERO), RecordsStatus.BAD_OFFSET_DELTA, id="delta -1"),
        pytest.param(record(ZERO, ZERO, varint(-2), NULL, ZERO), RecordsStatus.BAD_KEY_LENGTH, id="key length -2"),
        pytest.param(record(ZERO, ZERO, NULL, varint(-2), ZERO), RecordsStatus.BAD_VALUE_LENGTH, id="value length -2"),
        pytest.param(record(ZERO, ZERO, NULL, NULL, varint(-1)), RecordsStatus.BAD_HEADERS, id="-1 headers"),
        pytest.param(
            record(ZERO, ZERO, NULL, NULL, varint(1), NULL), RecordsStatus.BAD_HEADERS, id="a null header key"
        ),
        pytest.param(
            record(ZERO, ZERO, NULL, NULL, varint(1), ZERO, varint(-2)), RecordsStatus.BAD_HEADERS, id="header value -2"
        ),
        pytest.param(
            record(ZERO, ZERO, NULL, NULL, varint(2**31 - 1)), RecordsStatus.BAD_LENGTH, id="headers that are not there"
        ),
    ],
)
def test_a_bad_record_is_named_by_kind_and_index(form: ModuleType, payload: bytes, status: RecordsStatus) -> None:
    assert check(form, payload, 1) == RecordsCheck(status, 0, 0, 0, 0, -1)


@every_form
def test_a_bad_second_record_has_index_one(form: ModuleType) -> None:
    payload = payload_of(TWO[:1]) * 2

    assert check(form, payload, 2)[:2] == (RecordsStatus.BAD_OFFSET_DELTA, 1)


@every_form
@pytest.mark.parametrize("count", [1, 0, -1])
def test_bytes_after_the_last_record_are_named(form: ModuleType, count: int) -> None:
    assert check(form, payload_of(TWO), count)[:2] == (RecordsStatus.TRAILING_BYTES, max(count, 0))


@every_form
def test_fewer_records_than_stated_are_truncated(form: ModuleType) -> None:
    assert check(form, payload_of(TWO), 3)[:2] == (RecordsStatus.TRUNCATED, 2)


@every_form
@pytest.mark.parametrize(("position", "size"), [(-1, 1), (0, -1), (0, 5), (5, 0), (2, 3), (2**62, 2**62)])
def test_a_range_outside_the_buffer_is_refused(form: ModuleType, position: int, size: int) -> None:
    with pytest.raises(ValueError, match="outside a buffer of 4 bytes"):
        form.check_records(b"1234", position, size, 1)
    with pytest.raises(ValueError, match="outside a buffer of 4 bytes"):
        form.find_timestamp(b"1234", position, size, 1, 0, 0)


@every_form
@pytest.mark.parametrize("padding_bytes", [0, 100_000])
def test_every_kind_of_buffer_is_read(form: ModuleType, padding_bytes: int) -> None:
    payload = payload_of(TWO)
    data = b"before" + payload + b"after" + bytes(padding_bytes)
    expected = form.check_records(payload, 0, len(payload), 2)
    views = [memoryview(data), memoryview(bytearray(data)), memoryview(bytearray(data)).toreadonly()]

    for buffer in (data, bytearray(data), *views):
        assert form.check_records(buffer, 6, len(payload), 2) == expected
        assert form.find_timestamp(buffer, 6, len(payload), 2, 0, 0) == (0, 0)
    for view in views:
        assert form.check_records(view[6:], 0, len(payload), 2) == expected


@every_form
@pytest.mark.parametrize("padding_bytes", [0, 100_000])
def test_a_buffer_is_free_again_after_the_call(form: ModuleType, padding_bytes: int) -> None:
    data = bytearray(payload_of(TWO) + bytes(padding_bytes))
    view = memoryview(data).toreadonly()
    form.check_records(data, 0, len(data), 2)
    form.check_records(view, 0, len(data), 2)

    view.release()
    data.clear()


@every_form
def test_a_large_payload_is_walked_too(form: ModuleType) -> None:
    records = [Record(i, i, b"key", bytes(i % 300), (("h", b"v" * (i % 5)),)) for i in range(500)]
    payload = payload_of(records)

    assert check(form, payload, 500) == RecordsCheck(RecordsStatus.VALID, -1, 0, 0, 499, 499)


@every_form
@pytest.mark.parametrize(
    ("first_offset_delta", "target_delta", "found"),
    [
        (0, -(2**63), (0, 0)),
        (0, 0, (0, 0)),
        (0, 1, (1, 3)),
        (0, 3, (1, 3)),
        (0, 4, (3, 5)),
        (0, 2**63 - 1, None),
        (2, 0, (2, 1)),
        (2, 3, (3, 5)),
        (4, 0, None),
    ],
)
def test_the_first_record_at_or_after_an_offset_and_a_timestamp_is_found(
    form: ModuleType, first_offset_delta: int, target_delta: int, found: tuple[int, int] | None
) -> None:
    payload = payload_of([Record(i, timestamp, None, b"v") for i, timestamp in enumerate([10, 13, 11, 15])])

    assert form.find_timestamp(payload, 0, len(payload), 4, first_offset_delta, target_delta) == found


keys = st.none() | st.binary(max_size=20)
timestamps = st.integers(-(2**61), 2**61) | st.integers(0, 1000)
headers = st.lists(st.tuples(st.text(max_size=5), keys), max_size=3).map(tuple)
record_lists = st.lists(st.tuples(timestamps, keys, keys, headers), min_size=1, max_size=12).map(
    lambda rows: [Record(index, *row) for index, row in enumerate(rows)]
)
byte_edits = st.lists(
    st.tuples(st.integers(0, 10_000), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
)


@st.composite
def damaged_payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    records = draw(record_lists)
    payload = bytearray(payload_of(records))
    for position, byte in draw(byte_edits):
        payload[position % len(payload)] = byte
    cut = draw(st.integers(0, len(payload)) | st.just(len(payload)))
    return bytes(payload[:cut] + draw(st.binary(max_size=3))), draw(st.integers(-1, 14) | st.just(len(records)))


def assert_forms_agree(payload: bytes, count: int, target_delta: int) -> None:
    assert check(native, payload, count) == check(twin, payload, count)
    arguments = (payload, 0, len(payload), count, 1, target_delta)
    assert native.find_timestamp(*arguments) == twin.find_timestamp(*arguments)


@needs_native
@given(record_lists, timestamps)
@settings(max_examples=200, deadline=None)
def test_native_and_twin_agree_on_good_records(records: list[Record], target_delta: int) -> None:
    payload = payload_of(records)
    assert check(twin, payload, len(records)).status is RecordsStatus.VALID
    assert_forms_agree(payload, len(records), target_delta)


@needs_native
@given(damaged_payloads(), timestamps)
@settings(max_examples=600, deadline=None)
def test_native_and_twin_agree_on_damaged_records(damaged: tuple[bytes, int], target_delta: int) -> None:
    assert_forms_agree(*damaged, target_delta)


@needs_native
@given(st.binary(max_size=60), st.integers(-1, 5), timestamps)
@settings(max_examples=300, deadline=None)
def test_native_and_twin_agree_on_arbitrary_bytes(payload: bytes, count: int, target_delta: int) -> None:
    assert_forms_agree(payload, count, target_delta)


@given(damaged_payloads())
@settings(max_examples=200, deadline=None)
def test_what_the_kernel_accepts_the_record_decoder_reads(damaged: tuple[bytes, int]) -> None:
    payload, count = damaged
    header = parse_header(build_batch(TWO))._replace(record_count=count)
    batch = encode_header(header, payload) + payload
    accepted = check(twin, payload, count).status is RecordsStatus.VALID

    try:
        decoded = len(decode_records(batch))
    except ApiError:
        decoded = None
    if accepted:
        assert decoded == count


@needs_native
def test_damaged_records_never_make_the_kernel_read_past_the_end() -> None:
    """In a process of its own, which dies at the first byte read beyond the payload."""
    program = Path(__file__).with_name("guard_page_program.py")
    subprocess.run([sys.executable, str(program)], check=True, timeout=60)
