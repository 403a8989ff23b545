"""The records that make a batch refused, asked of both forms; then the two held equal over damaged payloads."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.kernel import refused_records_twin as twin
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

try:
    from flowstone.kernel import refused_records_native as native
except ImportError:
    FORMS: list[ModuleType] = [twin]
else:
    FORMS = [twin, native]

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.rpartition(".")[2])
needs_native = pytest.mark.skipif(len(FORMS) == 1, reason="the native kernel is not built")

BASE = 1000
ROWS = [(BASE, b"k"), (BASE + 50, None), (BASE - 900, b"k"), (-1, b""), (BASE + 51, None)]
PAYLOAD = build_batch([Record(at, time, key, b"v") for at, (time, key) in enumerate(ROWS)])[HEADER_BYTES:]


def find(form: ModuleType, payload: bytes = PAYLOAD, count: int = len(ROWS), **options: Any) -> list[Any]:
    options = {"low_delta": -(2**63) + 1, "high_delta": 2**63 - 1, "exempt_delta": 0, "limit": 10} | options
    found: list[Any] = form.find_refused(payload, 0, len(payload), count, **({"needs_key": False} | options))
    return found


@every_form
def test_records_without_a_key_are_found_where_one_is_needed(form: ModuleType) -> None:
    assert find(form) == []
    assert find(form, needs_key=True) == [(1, True, 50), (4, True, 51)]


@every_form
def test_records_out_of_the_range_of_timestamps_are_found_but_those_without_one(form: ModuleType) -> None:
    found = find(form, low_delta=-899, high_delta=50, exempt_delta=-1 - BASE)
    assert found == [(2, False, -900), (4, False, 51)]


@every_form
def test_no_more_are_found_than_asked_for(form: ModuleType) -> None:
    assert find(form, needs_key=True, limit=1) == [(1, True, 50)]
    assert find(form, needs_key=True, limit=0) == []


@every_form
def test_a_range_outside_the_buffer_is_refused(form: ModuleType) -> None:
    for position, size in ((-1, 1), (0, -1), (0, len(PAYLOAD) + 1)):
        with pytest.raises(ValueError, match="outside"):
            form.find_refused(
                PAYLOAD, position, size, 1, needs_key=True, low_delta=0, high_delta=0, exempt_delta=0, limit=1
            )


@needs_native
@given(
    changes=st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 20),
    count=st.integers(-1, 8),
    low=st.integers(-1000, 1000),
    high=st.integers(-1000, 1000),
)
@settings(max_examples=1500, deadline=None)
def test_both_forms_find_the_same_in_damaged_payloads(
    changes: list[tuple[int, int]], cut: int, count: int, low: int, high: int
) -> None:
    damaged = bytearray(PAYLOAD)
    for position, byte in changes:
        damaged[position] = byte
    payload = bytes(damaged[: len(damaged) - cut])
    options = {"low_delta": low, "high_delta": high, "needs_key": True}
    assert find(native, payload, count, **options) == find(twin, payload, count, **options)
