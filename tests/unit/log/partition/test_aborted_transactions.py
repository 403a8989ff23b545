"""Which aborted transactions a reader is told of: entry by entry, at the ends of what it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.log.partition import aborted_transactions
from flowstone.log.partition.aborted_transactions import (
    FOUND_MAX,
    AbortedTransaction,
    FoundAborts,
    LongSearch,
    end_of_slice,
    find_aborted,
)

# Producer id, first offset, marker's offset, last stable offset.
Entry = tuple[int, int, int, int]


class Index:
    """A segment's index of aborted transactions; counts the entries that are read."""

    def __init__(self, *entries: Entry) -> None:
        self.entries, self.read_count = entries, 0
        self.size_bytes = 34 * len(entries)

    def entries_from(self, start: int) -> Any:
        for entry in self.entries:
            if entry[2] >= start:
                self.read_count += 1
                yield (0, *entry)


def segments(*indexes: Index) -> Any:
    log = SimpleNamespace(get=lambda: SimpleNamespace(path="/log"))
    return [SimpleNamespace(transactions=index, log=log) for index in indexes]


def found(start: int, end: int, *indexes: Index) -> list[AbortedTransaction]:
    return find_aborted(segments(*indexes), start, end, {})


def test_transactions_that_begin_before_the_end_are_told_in_the_order_of_their_first_offsets() -> None:
    index = Index((1, 20, 40, 10), (2, 10, 41, 30), (3, 30, 42, 43))
    assert found(0, 31, index) == [(2, 10), (1, 20), (3, 30)]
    assert found(0, 30, index) == [(2, 10), (1, 20)]
    assert found(0, 10, index) == []


def test_the_search_ends_with_the_entry_after_which_no_earlier_transaction_is_decided() -> None:
    first, second = Index((1, 5, 10, 11), (2, 12, 14, 15)), Index((3, 13, 20, 21))
    assert found(0, 12, first, second) == [(1, 5)]
    assert (first.read_count, second.read_count) == (2, 0)
    first.read_count = 0
    assert found(0, 11, first, second) == [(1, 5)]
    assert first.read_count == 1
    assert found(0, 16, first, second) == [(1, 5), (2, 12), (3, 13)]


def test_segments_without_transactions_are_passed_over() -> None:
    empty, filled = Index(), Index((1, 5, 10, 11))
    assert found(0, 100, empty, filled, empty) == [(1, 5)]
    assert empty.read_count == 0


def test_a_search_through_many_entries_is_left_to_a_worker_and_its_result_is_used_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aborted_transactions, "INLINE_ENTRIES_MAX", 2)
    kept: FoundAborts = {}
    two, three = Index((1, 5, 6, 0), (2, 7, 8, 0)), Index((1, 5, 6, 0), (2, 7, 8, 0), (3, 9, 10, 0))
    assert len(find_aborted(segments(two), 0, 100, kept)) == 2
    with pytest.raises(LongSearch) as search:
        find_aborted(segments(three), 0, 100, kept)
    search.value.warm()
    assert find_aborted(segments(three), 0, 100, kept) == [(1, 5), (2, 7), (3, 9)]
    assert kept == {}
    with pytest.raises(LongSearch):
        find_aborted(segments(three), 0, 100, kept)


def test_the_results_of_readers_that_do_not_come_back_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_transactions, "INLINE_ENTRIES_MAX", 0)
    kept: FoundAborts = {}
    for start in range(FOUND_MAX + 1):
        with pytest.raises(LongSearch) as search:
            find_aborted(segments(Index((1, 5, 600, 0))), start, 1000, kept)
        search.value.warm()
        assert len(kept) == (start + 1 if start < FOUND_MAX else 1)


# The end of what a reader gets


def sliced(
    entry: tuple[int, int] | None, *, position: int = 100, length: int = 50, is_right: bool | Exception = True
) -> Any:
    """The first segment of a read (from offset 1000 on, 500 bytes) with one entry in its index, and the slice."""

    def check(*_: int) -> bool:
        if isinstance(is_right, Exception):
            raise is_right
        return is_right

    asked: list[int] = []

    def first_to(value: int) -> tuple[int, int] | None:
        asked.append(value)
        return entry

    offsets = SimpleNamespace(first_to=first_to)
    segment = SimpleNamespace(
        indexes=SimpleNamespace(offsets=offsets), size_bytes=500, base_offset=1000, is_right=check, asked=asked
    )
    records: Any = type("Slice", (), {"position": position, "__len__": lambda self: length})()
    return segment, records


FOLLOWING: Any = SimpleNamespace(base_offset=1400)


def test_the_index_says_where_a_slice_ends_at_the_latest() -> None:
    segment, records = sliced((30, 150))
    assert end_of_slice([segment, FOLLOWING], records, 2000) == 1031
    assert segment.asked == [150]
    assert end_of_slice([segment, FOLLOWING], records, 1020) == 1020


@pytest.mark.parametrize("entry", [None, (30, 500), (30, 501)])
def test_without_an_entry_beyond_the_slice_its_segment_ends_it(entry: tuple[int, int] | None) -> None:
    segment, records = sliced(entry)
    assert end_of_slice([segment, FOLLOWING], records, 2000) == 1400
    assert end_of_slice([segment, FOLLOWING], records, 1300) == 1300
    assert end_of_slice([segment], records, 2000) == 2000


def test_the_last_entry_in_a_segment_is_believed() -> None:
    segment, records = sliced((30, 499))
    assert end_of_slice([segment, FOLLOWING], records, 2000) == 1031


@pytest.mark.parametrize("is_right", [False, StorageFault("damaged")])
def test_an_entry_that_names_no_batch_is_not_believed(is_right: bool | Exception) -> None:
    segment, records = sliced((30, 150), is_right=is_right)
    assert end_of_slice([segment, FOLLOWING], records, 2000) == 2000


def test_without_an_index_the_segment_ends_the_slice() -> None:
    segment, records = sliced((30, 150))
    segment.indexes.offsets = None
    assert end_of_slice([segment, FOLLOWING], records, 2000) == 1400
