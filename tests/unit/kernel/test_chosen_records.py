"""The copy of chosen records, asked of both forms; then the two held equal over damaged payloads."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
DELTAS = (0, 1, 4, 5, 9)


def record(delta: int) -> bytes:
    return encode_record(delta, delta * 7, b"key", b"value" * delta, (("h", None),))


PAYLOAD = b"".join(map(record, DELTAS))


@every_form
@pytest.mark.parametrize(
    ("ranges", "chosen"),
    [
        ([(0, 9)], DELTAS),
        ([(1, 4)], (1, 4)),
        ([(0, 0), (5, 6)], (0, 5)),
        ([(2, 3)], ()),
        ([(9, 100)], (9,)),
        ([], ()),
    ],
)
def test_the_records_of_the_ranges_are_copied(
    form: ModuleType, ranges: list[tuple[int, int]], chosen: tuple[int, ...]
) -> None:
    found = form.copy_chosen(b"xx" + PAYLOAD + b"y", 2, len(PAYLOAD), len(DELTAS), ranges)

    assert found == (b"".join(map(record, chosen)), len(chosen), chosen[-1] if chosen else -1)


@every_form
def test_damage_before_the_end_of_the_ranges_is_noticed(form: ModuleType) -> None:
    assert form.copy_chosen(PAYLOAD[:-3], 0, len(PAYLOAD) - 3, len(DELTAS), [(9, 9)]) is None
    assert form.copy_chosen(b"\0" + PAYLOAD, 0, len(PAYLOAD) + 1, len(DELTAS), [(0, 0)]) is None
    assert form.copy_chosen(PAYLOAD, 0, len(PAYLOAD), len(DELTAS) + 1, [(99, 99)]) is None


@every_form
def test_a_range_outside_the_buffer_is_refused(form: ModuleType) -> None:
    for position, size in ((-1, 1), (0, -1), (0, 4)):
        with pytest.raises(ValueError, match="outside"):
            form.copy_chosen(b"abc", position, size, 1, [(0, 0)])


@needs_native
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 12), max_size=6, unique=True),
    st.integers(0, 7),
)
def test_both_forms_copy_the_same_of_damaged_records(
    damage: list[tuple[int, int]], bounds: list[int], count: int
) -> None:
    payload = bytearray(PAYLOAD)
    for at, byte in damage:
        payload[at] = byte
    ends = sorted(bounds)
    ranges = list(zip(ends[::2], ends[1::2], strict=False))

    asked = bytes(payload), 0, len(payload), count, ranges
    assert native.copy_chosen(*asked) == twin.copy_chosen(*asked)
