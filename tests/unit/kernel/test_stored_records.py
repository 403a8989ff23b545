"""The records of stored batches, asked of both forms; then the two held equal over damaged payloads."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.kernel import RecordsStatus, check_records
from flowstone.kernel import stored_records_twin as twin
from flowstone.wire.record_batch import encode_record

try:
    from flowstone.kernel import stored_records_native as native
except ImportError:
    FORMS: list[ModuleType] = [twin]
else:
    FORMS = [twin, native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")


def payload_of(*deltas: int) -> bytes:
    return b"".join(encode_record(delta, delta * 7, b"key", b"value", (("h", None),)) for delta in deltas)


def check(form: ModuleType, payload: bytes, count: int, last_delta: int) -> tuple[RecordsStatus, int]:
    found: tuple[RecordsStatus, int] = form.check_stored(payload, 0, len(payload), count, last_delta)
    return found


@every_form
def test_records_that_compaction_left_are_good(form: ModuleType) -> None:
    assert check(form, payload_of(0, 1, 2), 3, 2) == (RecordsStatus.VALID, -1)
    assert check(form, payload_of(3, 9), 2, 20) == (RecordsStatus.VALID, -1)
    assert check(form, b"", 0, 5) == (RecordsStatus.VALID, -1)


@every_form
@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 6)])
def test_offset_deltas_rise_and_stay_below_the_last(form: ModuleType, deltas: tuple[int, int]) -> None:
    assert check(form, payload_of(*deltas), 2, 5) == (RecordsStatus.BAD_OFFSET_DELTA, 1)


@every_form
def test_the_count_must_be_that_of_the_records(form: ModuleType) -> None:
    assert check(form, payload_of(0, 1), 3, 2) == (RecordsStatus.TRUNCATED, 2)
    assert check(form, payload_of(0, 1), 1, 2) == (RecordsStatus.TRAILING_BYTES, 1)
    assert check(form, payload_of(0, 1), 2**31 - 1, 2**31 - 2) == (RecordsStatus.TRUNCATED, 2)


@every_form
def test_a_range_outside_the_buffer_is_refused(form: ModuleType) -> None:
    for position, size in ((-1, 1), (0, -1), (0, 4)):
        with pytest.raises(ValueError, match="outside"):
            form.check_stored(b"abc", position, size, 1, 0)


@needs_native
@given(
    changes=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 20),
    count=st.integers(-1, 5),
    last_delta=st.integers(0, 6),
)
@settings(max_examples=1500, deadline=None)
def test_both_forms_say_the_same_of_damaged_payloads(
    changes: list[tuple[int, int]], cut: int, count: int, last_delta: int
) -> None:
    damaged = bytearray(payload_of(0, 1, 2))
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    payload = bytes(damaged[: len(damaged) - cut])
    expected = check(twin, payload, count, last_delta)
    assert check(native, payload, count, last_delta) == expected
    if count > 0 and not check_records(payload, 0, len(payload), count).status:
        assert check(twin, payload, count, count - 1)[0] is RecordsStatus.VALID
