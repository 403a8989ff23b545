from __future__ import annotations

import pytest

from flowstone.errors import StorageFault
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.transaction_index import (
    READ_ENTRIES,
    AbortEntry,
    TransactionIndex,
    abort_entry,
    aborts_below,
    encode_aborts,
    is_sound,
)
from flowstone.ports.simulated_files import SimulatedFiles

ENTRIES = [abort_entry(7, 10, 20, 21), abort_entry(8, 5, 30, 25), abort_entry(9, 25, 31, 32)]


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_directory("/log")
    return made


def index_of(files: SimulatedFiles, entries: list[AbortEntry], *, is_sealed: bool) -> TransactionIndex:
    index = TransactionIndex(FileHandles(files, 4).handle("/log/0.txnindex"))
    for entry in entries:
        index.note(entry)
    if is_sealed:
        index.write(even_if_empty=False)
        index.seal()
        index.open_sealed(index.size_bytes)
    return index


def test_an_entry_has_the_bytes_that_kafka_writes() -> None:
    assert encode_aborts([abort_entry(1, 2, 3, 4)]) == bytes.fromhex(
        "00000000000000000001000000000000000200000000000000030000000000000004"
    )


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (20, 0), (21, 1), (30, 1), (31, 2), (32, 3)])
def test_the_entries_of_a_reopened_active_segment_are_found_from_their_markers_on(
    files: SimulatedFiles, offset: int, first: int
) -> None:
    index = TransactionIndex(FileHandles(files, 4).handle("/log/0.txnindex"))
    index.open_active(encode_aborts(ENTRIES), has_file=True)
    assert list(index.entries_from(offset)) == ENTRIES[first:]


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(("offset", "first"), [(0, 0), (20, 0), (21, 1), (30, 1), (31, 2), (32, 3)])
def test_entries_are_found_from_their_markers_on(
    files: SimulatedFiles, is_sealed: bool, offset: int, first: int
) -> None:
    index = index_of(files, ENTRIES, is_sealed=is_sealed)
    assert [*index.entries_from(offset)] == ENTRIES[first:]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_many_entries_are_read_piece_by_piece(files: SimulatedFiles, is_sealed: bool) -> None:
    entries = [abort_entry(1, 2 * at, 2 * at + 1, 2 * at + 2) for at in range(3 * READ_ENTRIES + 5)]
    index = index_of(files, entries, is_sealed=is_sealed)
    assert [*index.entries_from(0)] == entries


def test_an_index_without_entries_has_no_file_unless_it_is_wanted(files: SimulatedFiles) -> None:
    index = index_of(files, [], is_sealed=False)
    index.write(even_if_empty=False)
    assert not files.exists("/log/0.txnindex")
    index.write(even_if_empty=True)
    assert files.read("/log/0.txnindex") == b""


def test_an_index_written_again_is_as_long_as_its_entries(files: SimulatedFiles) -> None:
    index_of(files, ENTRIES, is_sealed=True)
    shorter = TransactionIndex(FileHandles(files, 4).handle("/log/0.txnindex"))
    shorter.open_active(encode_aborts(ENTRIES[:1]), has_file=True)
    shorter.write(even_if_empty=False)
    assert files.read("/log/0.txnindex") == encode_aborts(ENTRIES[:1])


def test_a_file_that_lost_its_end_is_damage(files: SimulatedFiles) -> None:
    index = index_of(files, ENTRIES, is_sealed=True)
    files.open("/log/0.txnindex").truncate(40)
    with pytest.raises(StorageFault):
        index.read()


def test_a_cut_leaves_the_entries_whose_markers_lie_below_it() -> None:
    data = encode_aborts(ENTRIES)
    assert [len(aborts_below(data, offset)) // 34 for offset in (20, 21, 31, 100)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "entry",
    [
        AbortEntry(1, 7, 10, 20, 21),  # a version of the future
        abort_entry(7, 20, 20, 21),  # a marker that is its transaction's first record
        abort_entry(7, -1, 20, 21),
        abort_entry(7, 10, 20, 22),  # more is stable than there was
        abort_entry(7, 10, 20, -1),
        abort_entry(7, 10, 15, 16),  # not in the segment
        abort_entry(7, 10, 40, 41),
    ],
)
def test_an_entry_that_cannot_be_is_noticed(entry: AbortEntry) -> None:
    assert is_sound(encode_aborts([abort_entry(7, 10, 20, 21)]), 18, 40)
    assert not is_sound(encode_aborts([entry]), 18, 40)


def test_entries_out_of_order_are_noticed() -> None:
    assert is_sound(encode_aborts(ENTRIES), 0, 32)
    assert not is_sound(encode_aborts(ENTRIES[::-1]), 0, 32)
    assert not is_sound(encode_aborts(ENTRIES)[:-1], 0, 32)
