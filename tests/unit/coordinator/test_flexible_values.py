"""The fields of coordinators' stored values: what is written is read back, and malformed bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.coordinator import flexible_values as flexible
from flowstone.coordinator.flexible_values import INT, MALFORMED, SHORT, ValueReader
from flowstone.wire.primitives import encode_tags

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.text(max_size=40), max_size=3), INT32, st.none() | st.text(max_size=9), st.lists(INT32, max_size=9))
def test_a_value_is_read_as_it_was_written(
    texts: list[str], number: int, nullable: str | None, numbers: list[int]
) -> None:
    fields = (
        flexible.array(texts, flexible.string),
        INT.pack(number),
        flexible.nullable_string(nullable),
        flexible.int_array(numbers),
        encode_tags([(0, INT.pack(number)), (9, b"of a newer version")]),
    )
    reader = ValueReader(SHORT.pack(0) + b"".join(fields))
    assert reader.array(ValueReader.string) == texts
    assert reader.number(INT) == number
    assert reader.nullable_string() == nullable
    assert reader.int_array() == tuple(numbers)
    tags = reader.tags()
    assert (tags[0].number(INT), sorted(tags)) == (number, [0, 9])
    reader.check_end()


@given(st.integers(0, 32767), st.lists(st.text(max_size=40), max_size=3))
def test_a_key_is_read_as_it_was_written(key_type: int, texts: list[str]) -> None:
    key = flexible.key(key_type, *texts)
    assert SHORT.unpack_from(key) == (key_type,)
    assert flexible.key_texts(key, len(texts)) == texts


@pytest.mark.parametrize("count", [0, 2])
def test_a_key_with_another_number_of_texts_is_malformed(count: int) -> None:
    with pytest.raises(MALFORMED):
        flexible.key_texts(flexible.key(3, "group"), count)


def test_a_null_array_of_numbers_has_none() -> None:
    assert ValueReader(flexible.NULL, 0).int_array() == ()


def test_lengths_beyond_the_end_are_malformed() -> None:
    whole = b"".join([flexible.string("a text"), flexible.int_array([1, 2]), flexible.array(["b"], flexible.string)])
    for length in range(len(whole)):
        reader = ValueReader(whole[:length], 0)
        with pytest.raises(MALFORMED):
            (reader.string(), reader.int_array(), reader.array(ValueReader.string))


def test_bytes_behind_the_last_field_are_malformed() -> None:
    reader = ValueReader(b"\0\0", 0)
    reader.tags()
    with pytest.raises(ValueError, match="1 bytes too many"):
        reader.check_end()
