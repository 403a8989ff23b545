from __future__ import annotations

import random
from pathlib import Path
from struct import Struct

import pytest

from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.file_handles import FileHandles, Handle
from flowstone.log.segments.sparse_index import OFFSET_ENTRY, SEARCH_RUN_BYTES, TIME_ENTRY, IndexEntries, SealedIndex
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import SystemFiles

PAIRS = [(7, 0), (9, 300), (20, 700), (21, 950)]


def entries(pairs: list[tuple[int, int]]) -> IndexEntries:
    made = IndexEntries(OFFSET_ENTRY)
    for key, value in pairs:
        made.append(key, value)
    return made


def sealed(pairs: list[tuple[int, int]]) -> SealedIndex:
    files = SimulatedFiles()
    data = entries(pairs).encode()
    handle = FileHandles(files, 4).handle("/an.index")
    handle.create().write(0, [data])
    return SealedIndex(OFFSET_ENTRY, handle, len(data))


def written(pairs: list[tuple[int, int]]) -> tuple[Handle, int]:
    """A file of time entries, whose keys may be large, and its size."""
    data = b"".join(TIME_ENTRY.pack(*pair) for pair in pairs)
    handle = FileHandles(SimulatedFiles(), 4).handle("/a.timeindex")
    handle.create().write(0, [data])
    return handle, len(data)


def test_an_offset_entry_is_two_big_endian_ints() -> None:
    assert entries([(1, 2)]).encode() == b"\0\0\0\1\0\0\0\2"


def test_a_time_entry_is_a_big_endian_long_and_an_int() -> None:
    made = IndexEntries(TIME_ENTRY)
    made.append(1, 2)
    assert made.encode() == b"\0\0\0\0\0\0\0\1\0\0\0\2"


@pytest.mark.parametrize(("entry", "key_max"), [(OFFSET_ENTRY, 2**31), (TIME_ENTRY, 2**63)])
def test_an_index_is_its_entries_one_after_another(entry: Struct, key_max: int) -> None:
    generator = random.Random(2)
    keys = sorted({generator.randrange(key_max) for _ in range(2000)} | {0, key_max - 1})
    pairs = list(zip(keys, sorted(generator.sample(range(2**31), len(keys))), strict=True))
    made = IndexEntries(entry)
    for key, value in pairs:
        made.append(key, value)
    assert made.encode() == b"".join(entry.pack(*pair) for pair in pairs)


@pytest.mark.parametrize(("key", "found"), [(6, None), (7, (7, 0)), (19, (9, 300)), (21, (21, 950)), (99, (21, 950))])
def test_the_last_entry_at_or_before_the_key_is_found(key: int, found: tuple[int, int] | None) -> None:
    assert entries(PAIRS).lookup(key) == found
    assert sealed(PAIRS).lookup(key) == found


@pytest.mark.parametrize(
    ("value", "found"), [(0, (7, 0)), (1, (9, 300)), (300, (9, 300)), (701, (21, 950)), (950, (21, 950)), (951, None)]
)
def test_the_first_entry_that_leads_to_a_value_or_beyond_is_found(value: int, found: tuple[int, int] | None) -> None:
    assert entries(PAIRS).first_to(value) == found
    assert sealed(PAIRS).first_to(value) == found


def test_an_index_without_entries_leads_nowhere() -> None:
    for index in (entries([]), sealed([])):
        assert (index.lookup(5), index.around(5), index.first_to(0), len(index)) == (None, (None, None), None, 0)


def test_the_entries_on_both_sides_of_a_key_are_found() -> None:
    for index in (entries(PAIRS), sealed(PAIRS)):
        assert index.around(6) == (None, (7, 0))
        assert index.around(7) == ((7, 0), (9, 300))
        assert index.around(20) == ((20, 700), (21, 950))
        assert index.around(21) == ((21, 950), None)
        assert len(index) == 4


@pytest.mark.parametrize("count", [47, 48, 49, 95, 96, 97])
def test_a_sealed_index_finds_the_entries_around_every_key_whatever_its_size(count: int) -> None:
    """One run of entries, and just under and over it: the sizes at which the search takes another course."""
    assert SEARCH_RUN_BYTES // OFFSET_ENTRY.size == 48
    pairs = [(at * 10 + at * at, at * 100) for at in range(count)]
    in_memory, in_file = entries(pairs), sealed(pairs)
    for key in range(-1, pairs[-1][0] + 2):
        before, after = in_memory.around(key)
        found_before, found_after = in_file.around(key)
        assert found_before == before
        assert found_after in (after, None)


def test_copies_and_extensions_have_the_entries_they_are_to_have() -> None:
    made = entries(PAIRS)
    first = made.first(2)
    assert list(zip(first.keys, first.values, strict=True)) == PAIRS[:2]
    assert first.encode() == made.encode()[: 2 * OFFSET_ENTRY.size]
    first.extend(made, 3)
    assert list(zip(first.keys, first.values, strict=True)) == [*PAIRS[:2], PAIRS[3]]
    assert len(made) == 4


def test_a_large_sealed_index_finds_what_one_in_memory_does() -> None:
    generator = random.Random(1)
    keys = sorted(generator.sample(range(100_000), 5000))
    pairs = [(key, at * 4096) for at, key in enumerate(keys)]
    in_memory, in_file = entries(pairs), sealed(pairs)
    for key in generator.sample(range(-5, 100_005), 500):
        assert in_file.lookup(key) == in_memory.lookup(key)


@pytest.mark.parametrize("power", [2, 5])
def test_a_sealed_index_of_uneven_batches_finds_what_one_in_memory_does(power: int) -> None:
    pairs = [(at**power, at * 4096) for at in range(2000)]
    generator = random.Random(power)
    in_memory, in_file = entries(pairs), SealedIndex(TIME_ENTRY, *written(pairs))
    keys = [generator.choice(pairs)[0] + generator.choice((-1, 0, 1)) for _ in range(500)]
    for key in [*keys, -1, 0, pairs[-1][0] + 10**9]:
        assert in_file.lookup(key) == in_memory.lookup(key)


def test_decoding_gives_back_what_was_encoded() -> None:
    decoded = IndexEntries.decode(OFFSET_ENTRY, entries(PAIRS).encode())
    assert decoded is not None
    assert list(zip(decoded.keys, decoded.values, strict=True)) == PAIRS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(entries(PAIRS).encode()[:-1], id="cut inside an entry"),
        pytest.param(OFFSET_ENTRY.pack(5, 10) + OFFSET_ENTRY.pack(5, 20), id="a key twice"),
        pytest.param(OFFSET_ENTRY.pack(5, 10) + OFFSET_ENTRY.pack(6, 9), id="positions that fall"),
        pytest.param(OFFSET_ENTRY.pack(5, -1), id="a negative position"),
    ],
)
def test_bytes_that_cannot_be_an_index_are_refused(data: bytes) -> None:
    assert IndexEntries.decode(OFFSET_ENTRY, data) is None


def test_a_sealed_index_that_was_cut_short_since_leads_nowhere_but_does_not_fail() -> None:
    handle, size_bytes = written([(at * 10, at * 4096) for at in range(500)])
    index = SealedIndex(TIME_ENTRY, handle, size_bytes)
    handle.get().truncate(0)
    assert index.lookup(2505) == (0, 0)


def test_a_sealed_index_with_one_key_far_from_all_others_finds_what_one_in_memory_does(tmp_path: Path) -> None:
    """Every key seems to lie at the beginning. On a real file, which has nothing before its beginning."""
    pairs = [(at, at * 4096) for at in range(2000)] + [(10**12, 2000 * 4096)]
    in_memory, data = entries(pairs[:-1]), b"".join(TIME_ENTRY.pack(*pair) for pair in pairs)
    handle = FileHandles(SystemFiles(), 4).handle(str(tmp_path / "a.timeindex"))
    handle.create().write(0, [data])
    in_file = SealedIndex(TIME_ENTRY, handle, len(data))
    for key in range(0, 2000, 7):
        assert wait_for(lambda key=key: in_file.lookup(key)) == in_memory.lookup(key)
