from __future__ import annotations

import random

import pytest

from flowstone.log.segments.transaction_index import AbortEntry, abort_entry, encode_aborts
from flowstone.log.segments.transaction_index_check import TransactionIndexCheck
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch, encode_header, parse_header

BASE, END = 10, 22
# A transaction of producer 7 from an earlier segment, two of 8, and one of 9 that goes on.
ENTRIES = [abort_entry(7, 4, 12, 11), abort_entry(8, 11, 14, 13), abort_entry(8, 16, 18, 13)]


def transactional(offset: int, producer_id: int) -> bytes:
    return build_batch(
        [Record(offset, 1, b"k", b"v")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
    )


def marker(offset: int, producer_id: int, *, is_commit: bool = False) -> bytes:
    batch = end_marker(producer_id, 0, 3, is_commit, 1)
    header = parse_header(batch)._replace(base_offset=offset)
    return encode_header(header, batch[61:]) + batch[61:]


SEGMENT = [
    build_batch([Record(10, 1, b"k", b"v")], base_offset=10),
    transactional(11, 8),
    marker(12, 7),  # its records lie before the segment
    transactional(13, 9),
    marker(14, 8),
    marker(15, 6),  # without any records
    transactional(16, 8),
    transactional(17, 8),
    marker(18, 8),
    transactional(19, 5),
    marker(20, 5, is_commit=True),
    transactional(21, 9),
]


def verdict(entries: list[AbortEntry], segment: list[bytes] = SEGMENT) -> str | None:
    check = TransactionIndexCheck()
    for batch in segment:
        check.add(parse_header(batch), lambda batch=batch: batch)  # type: ignore[misc]
    return check.verdict(encode_aborts(entries), BASE, END)


def test_an_index_that_has_every_abort_is_good() -> None:
    assert verdict(ENTRIES) is None


def test_an_abort_may_be_of_records_that_nobody_has_any_more() -> None:
    assert verdict(ENTRIES[1:]) is None
    compacted = [batch for batch in SEGMENT if parse_header(batch).producer_id != 8 or parse_header(batch).is_control]
    assert verdict(ENTRIES, compacted) is None


@pytest.mark.parametrize("missing", [1, 2])
def test_a_missing_entry_is_found(missing: int) -> None:
    told = verdict([entry for at, entry in enumerate(ENTRIES) if at != missing])
    assert told == f"the transaction that is aborted at offset {ENTRIES[missing].marker_offset} is missing"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (abort_entry(7, 16, 18, 13), "in its entry for offset 18: it names producer 7 instead of 8"),
        (abort_entry(8, 17, 18, 13), "in its entry for offset 18: it begins the transaction at offset 17"),
        (abort_entry(8, 14, 18, 13), "in its entry for offset 18: it begins the transaction at offset 14"),
        (abort_entry(8, 16, 18, 14), "in its entry for offset 18: it claims that all before offset 14 was stable"),
        (abort_entry(8, 16, 19, 13), "in its entry for offset 19: there is no abort marker"),
        (abort_entry(5, 19, 20, 13), "in its entry for offset 20: there is no abort marker"),
        (abort_entry(8, 16, 28, 13), "it is malformed"),
    ],
)
def test_a_wrong_entry_is_found(entry: AbortEntry, told: str) -> None:
    assert verdict([*ENTRIES[:2], entry]) == told


def test_a_marker_that_was_compacted_away_ends_its_transaction() -> None:
    header = parse_header(SEGMENT[4])._replace(record_count=0)
    segment = [*SEGMENT[:4], encode_header(header, b""), *SEGMENT[5:]]
    assert verdict([ENTRIES[0], ENTRIES[2]], segment) is None


def test_the_entry_of_a_marker_that_a_repair_has_replaced_is_left_alone() -> None:
    filler = parse_header(SEGMENT[0])._replace(base_offset=14, record_count=0)
    assert verdict(ENTRIES, [*SEGMENT[:4], encode_header(filler, b""), *SEGMENT[5:]]) is None


def test_a_control_batch_of_another_kind_ends_none() -> None:
    other = build_batch(
        [Record(17, 1, b"\0\0\0\2", b"")], base_offset=17, producer_id=8, is_transactional=True, is_control=True
    )
    assert verdict(ENTRIES, [*SEGMENT[:7], other, *SEGMENT[8:]]) is None


def test_nearly_every_flipped_bit_is_found() -> None:
    """Others lower the first offset within what another segment may have, or make a search longer than it need be."""
    data, rng = encode_aborts(ENTRIES), random.Random(1)
    check = TransactionIndexCheck()
    for batch in SEGMENT:
        check.add(parse_header(batch), lambda batch=batch: batch)  # type: ignore[misc]
    found = 0
    positions = rng.sample(range(8 * len(data)), 500)
    for position in positions:
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        found += check.verdict(flipped, BASE, END) is not None
    assert found > 0.95 * len(positions)
