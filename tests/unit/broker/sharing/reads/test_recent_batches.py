"""Batches without the records that a member did not get, and the bound of what is kept of them."""

from __future__ import annotations

from collections.abc import Callable

from flowstone.broker.sharing.reads import recent_batches
from flowstone.broker.sharing.reads.recent_batches import KeptBatches, RecentBatches, only_records
from flowstone.coordinator.share.records import Delay, ShareKey
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, checksum_matches, decode_records, parse_header

RECORDS = [Record(100 + index, 1000 + index, b"k%d" % index, b"v" * index) for index in range(20)]
BATCH = build_batch(RECORDS, base_offset=100, producer_id=7, producer_epoch=1, base_sequence=3)
KEY = ShareKey("g", bytes(16), 0)


def reading(data: bytes, reads: list[int]) -> Callable[[], bytes]:
    def read() -> bytes:
        reads.append(len(data))
        return data

    return read


def test_a_cut_batch_has_the_chosen_records_as_they_were() -> None:
    cut = only_records(BATCH, [(90, 101), (105, 105), (118, 200)])

    assert cut is not None
    header = parse_header(cut)
    assert checksum_matches(cut, 0, header)
    assert decode_records(cut) == [RECORDS[index] for index in (0, 1, 5, 18, 19)]
    assert (header.base_offset, header.last_offset, header.producer_id) == (100, 119, 7)


def test_a_compressed_batch_or_one_without_chosen_records_is_not_cut() -> None:
    assert only_records(build_batch(RECORDS, base_offset=100, codec=Codec.GZIP), [(100, 101)]) is None
    assert only_records(BATCH, [(120, 130)]) is None


def test_a_damaged_batch_is_not_given_a_new_checksum() -> None:
    damaged = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
    recent = RecentBatches(KEY, 1, KeptBatches())

    assert recent.only(100, len(BATCH), [(100, 101)], lambda: damaged) is None


def test_a_batch_is_read_once_unless_compaction_or_another_leader_replaced_it() -> None:
    kept, reads = KeptBatches(), list[int]()
    read = reading(BATCH, reads)
    recent = RecentBatches(KEY, 1, kept)

    assert recent.only(100, len(BATCH), [(100, 101)], read) == recent.only(100, len(BATCH), [(100, 101)], read)
    assert len(reads) == 1
    recent.only(100, len(BATCH) - 1, [(100, 101)], read)
    RecentBatches(KEY, 2, kept).only(100, len(BATCH), [(100, 101)], read)
    assert len(reads) == 3


def test_the_bytes_that_are_kept_are_bounded() -> None:
    kept, reads = KeptBatches(), list[int]()
    recent = RecentBatches(KEY, 1, kept)
    size = recent_batches.KEPT_BYTES_MAX // 2
    large = build_batch([Record(0, 1, None, bytes(size)), Record(1, 1, None, b"x")])

    for base in (0, 1, 0):  # the third one is read again: the second one has evicted the first
        recent.only(base, len(large), [(0, 5)], reading(large, reads))

    assert len(reads) == 3


def test_delays_are_searched_once() -> None:
    recent, searches = RecentBatches(KEY, 1, KeptBatches()), list[int]()

    def find() -> tuple[Delay, ...]:
        searches.append(1)
        return (Delay(3, 4),)

    assert [recent.delays(0, 10, find) for _ in range(3)] == [(Delay(3, 4),)] * 3
    assert len(searches) == 1
    for base in range(1, recent_batches.BATCHES_KNOWN_MAX + 1):
        recent.delays(base, 10, find)
    recent.delays(0, 10, find)
    assert len(searches) == recent_batches.BATCHES_KNOWN_MAX + 2


def test_the_delays_that_are_kept_are_bounded() -> None:
    recent, searches = RecentBatches(KEY, 1, KeptBatches()), list[int]()

    def found(base: int, count: int) -> int:
        """Have the delays looked up; return how often a batch has been searched since the beginning."""
        made = tuple(Delay(base + index, 4) for index in range(count))
        assert recent.delays(base, 10, lambda: searches.append(base) or made) == made
        return len(searches)

    half = recent_batches.DELAYS_KNOWN_MAX // 2
    assert [found(base, half) for base in (0, half, half, 0)] == [1, 2, 2, 2]
    assert [found(base, half) for base in (2 * half, half, 0)] == [3, 3, 4]
    assert [found(7, 2 * half + 1) for _ in range(2)] == [5, 6], "more than may be kept"
