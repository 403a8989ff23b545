"""A layered map is a dict, whatever was changed and however it was merged, and no change is seen in an earlier one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowstone.cluster.image.layered_map import GONE, LAYER_SIZE_MIN, LayeredMap

KEYS = range(2 * LAYER_SIZE_MIN)
changes = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9) | st.just(GONE), max_size=LAYER_SIZE_MIN)


def changed(before: dict[int, int], change: dict[int, int]) -> dict[int, int]:
    return {key: value for key, value in (before | change).items() if value is not GONE}


@given(st.lists(changes, max_size=12), st.booleans())
def test_it_equals_the_dict_with_the_same_changes(history: list[dict[int, int]], looks_between: bool) -> None:
    expected: list[dict[int, int]] = [{}]
    maps: list[LayeredMap[int, int]] = [LayeredMap()]
    for change in history:
        expected.append(changed(expected[-1], change))
        maps.append(maps[-1].changed(change))
        if looks_between:
            assert dict(maps[-1].items()) == expected[-1]
    for found, wanted in zip(maps, expected, strict=True):
        assert len(found) == len(wanted)
        assert [found.get(key, "none") for key in KEYS] == [wanted.get(key, "none") for key in KEYS]
        assert [key in found for key in KEYS] == [key in wanted for key in KEYS]
        assert found == wanted
        assert sorted(found) == sorted(wanted)
        assert sorted(found.values()) == sorted(wanted.values())


def test_new_keys_come_last() -> None:
    one: LayeredMap[str, int] = LayeredMap({"b": 1})
    assert list(one.changed({"c": 2}).changed({"a": 3})) == ["b", "c", "a"]


def test_a_lookup_of_a_missing_key_is_an_error() -> None:
    one: LayeredMap[str, int] = LayeredMap({"b": 1})
    for each in (one, one.changed({"b": GONE})):
        try:
            each["c"], each["b"]
        except KeyError:
            continue
        raise AssertionError("no KeyError")


def test_a_change_of_a_large_map_copies_a_small_part_of_it() -> None:
    size = 10_000
    large: LayeredMap[int, int] = LayeredMap({key: key for key in range(size)})
    copied = merged = 0
    for key in range(size, size + 1000):
        before, large = large, large.changed({key: key})
        if large._base is before._base:
            copied += len(large._layer)
        else:
            merged += 1
    assert merged < 10
    assert copied / 1000 < 100
