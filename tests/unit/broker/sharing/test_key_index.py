"""KeyIndex: which record of each key is its head, as records are added and finished."""

from __future__ import annotations

from random import Random

from flowstone.broker.sharing.key_index import DROPPED_MIN, KeyIndex, key_of_none
from flowstone.broker.sharing.spans import Span

A, B, C = 1, 2, 3


def test_records_of_new_keys_are_heads_at_once() -> None:
    index = KeyIndex(10)
    assert index.add(10, [A, B, C]) == [(10, 12)]
    assert index.finish(10, 12) == []
    assert index.add(13, [A]) == [(13, 13)]


def test_a_record_follows_when_the_one_before_of_its_key_is_finished() -> None:
    index = KeyIndex(0)
    assert index.add(0, [A, A, B, A]) == [(0, 0), (2, 2)]
    assert index.finish(0, 0) == [(1, 1)]
    assert index.finish(1, 2) == [(3, 3)]
    assert index.finish(3, 3) == []


def test_a_record_that_is_finished_together_with_its_head_is_none() -> None:
    index = KeyIndex(0)
    index.add(0, [A, A, A])
    assert index.finish(0, 1) == [(2, 2)]


def test_offsets_without_a_record_are_ignored() -> None:
    index = KeyIndex(0)
    assert index.add(0, [A, 0, B]) == [(0, 0), (2, 2)]
    assert index.add(5, [A]) == []
    assert index.finish(0, 4) == [(5, 5)]
    assert index.finish(0, 4) == []


def test_records_without_a_key_wait_for_nobody() -> None:
    index = KeyIndex(0)
    assert index.add(0, [key_of_none(0), key_of_none(1), A]) == [(0, 2)]


def test_finished_records_are_dropped_when_there_are_many() -> None:
    index = KeyIndex(0)
    index.add(0, range(1, DROPPED_MIN + 11))
    index.finish(0, DROPPED_MIN - 1)
    index.drop_before(DROPPED_MIN)
    assert index.next_offset == DROPPED_MIN + 10
    assert index.finish(DROPPED_MIN, DROPPED_MIN + 9) == []
    index.drop_before(10 * DROPPED_MIN)
    assert index.add(10 * DROPPED_MIN, [A]) == [(10 * DROPPED_MIN, 10 * DROPPED_MIN)]


def test_the_heads_are_the_first_records_of_their_keys_over_random_histories() -> None:
    for seed in range(100):
        random = Random(seed)
        index, heads = KeyIndex(0), set[int]()
        keys: dict[int, int] = {}  # of unfinished records
        for _ in range(60):
            if random.random() < 0.5 or not heads:
                first = index.next_offset
                added = [random.randrange(6) for _ in range(random.randrange(1, 8))]
                heads |= offsets(index.add(first, added))
                keys |= {offset: key for offset, key in enumerate(added, first) if key}
            else:
                done = random.choice(sorted(heads))
                heads |= offsets(index.finish(done, done))
                heads.remove(done)
                del keys[done]
            assert heads == {min(each for each in keys if keys[each] == key) for key in set(keys.values())}


def offsets(spans: list[Span]) -> set[int]:
    return {offset for first, last in spans for offset in range(first, last + 1)}
