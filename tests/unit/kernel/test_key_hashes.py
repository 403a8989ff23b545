"""The hashes of a batch's keys, asked of both forms; then the two held equal over damaged payloads."""

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
KEYS = (b"a", None, b"b", b"", b"a", b"a long key of more than eight bytes", None, b"")
DELTAS = (0, 1, 2, 5, 6, 7, 8, 70)


def payload_of(deltas: tuple[int, ...]) -> bytes:
    return b"".join(encode_record(delta, 3, key, b"v", ()) for delta, key in zip(deltas, KEYS, strict=True))


PAYLOAD = payload_of(DELTAS)


@every_form
def test_the_same_key_has_the_same_hash_and_no_key_has_none(form: ModuleType) -> None:
    found = form.hash_keys(b"xx" + PAYLOAD + b"y", 2, len(PAYLOAD), len(KEYS))
    assert tuple(found.deltas) == DELTAS
    assert [hashed == 0 for hashed in found.hashes] == [key is None for key in KEYS]
    assert len(set(found.hashes)) == len(set(KEYS))
    assert found.hashes[0] == found.hashes[4]
    assert found.hashes[3] == found.hashes[7]


@every_form
def test_records_without_gaps(form: ModuleType) -> None:
    payload = payload_of(tuple(range(len(KEYS))))
    assert list(form.hash_keys(payload, 0, len(payload), len(KEYS)).deltas) == list(range(len(KEYS)))
    assert list(form.hash_keys(b"", 0, 0, 0).deltas) == []


@every_form
def test_damage_is_noticed(form: ModuleType) -> None:
    for damaged, count in (
        (PAYLOAD[:-3], len(KEYS)),
        (b"\0" + PAYLOAD, len(KEYS)),
        (PAYLOAD, len(KEYS) + 1),
        (PAYLOAD, 1 << 40),
        (payload_of(DELTAS[::-1]), len(KEYS)),
    ):
        assert form.hash_keys(damaged, 0, len(damaged), count) is None


@every_form
def test_a_range_outside_the_buffer_is_refused(form: ModuleType) -> None:
    for position, size in ((-1, 1), (0, -1), (0, 4)):
        with pytest.raises(ValueError, match="outside"):
            form.hash_keys(b"abc", position, size, 0)


@needs_native
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), max_size=3), st.integers(0, 9))
def test_both_forms_find_the_same_keys_in_damaged_records(damage: list[tuple[int, int]], count: int) -> None:
    payload = bytearray(PAYLOAD)
    for at, byte in damage:
        payload[at] = byte
    asked = bytes(payload), 0, len(payload), count
    ours, reference = native.hash_keys(*asked), twin.hash_keys(*asked)
    assert (ours is None) == (reference is None)
    if ours is not None and reference is not None:
        assert list(ours.deltas) == list(reference.deltas)
        assert _classes(ours.hashes) == _classes(reference.hashes)


def _classes(hashes: list[int]) -> list[int]:
    """Return, for each hash, where it is first; -1 for none."""
    return [-1 if not each else hashes.index(each) for each in hashes]
