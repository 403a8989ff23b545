"""Which batches a read_committed reader leaves out."""

from __future__ import annotations

from flowstone.arrow.transactions import AbortedTransactions
from flowstone.wire.record_batch import BatchHeader, Record, build_batch, parse_header


def data(offset: int, producer_id: int = 1, *, is_transactional: bool = True) -> BatchHeader:
    records = [Record(offset, 0, None, b""), Record(offset + 1, 0, None, b"")]
    batch = build_batch(records, base_offset=offset, producer_id=producer_id, is_transactional=is_transactional)
    return parse_header(batch)


def marker(offset: int, producer_id: int = 1) -> BatchHeader:
    record = Record(offset, 0, b"\0\0\0\0", b"")
    return parse_header(
        build_batch([record], base_offset=offset, producer_id=producer_id, is_transactional=True, is_control=True)
    )


def left_out(aborted: AbortedTransactions, *headers: BatchHeader) -> list[int]:
    return [header.base_offset for header in headers if aborted.leaves_out(header)]


def test_an_aborted_transaction_is_left_out_until_its_marker() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 10)])

    assert left_out(aborted, data(5), data(10), data(12), marker(14), data(15)) == [10, 12, 14]


def test_a_transaction_that_began_before_the_range_is_left_out() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 10)])

    assert left_out(aborted, data(100), marker(102)) == [100, 102]


def test_other_producers_and_batches_without_a_transaction_are_seen() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 10)])

    assert left_out(aborted, data(10), data(12, 2), data(14, is_transactional=False)) == [10]


def test_a_producers_next_transaction_is_judged_by_itself() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 30), (1, 10)])

    seen = left_out(aborted, data(10), marker(12), data(20), marker(22), data(30), marker(32), data(40))

    assert seen == [10, 12, 22, 30, 32]


def test_a_transaction_goes_on_over_two_responses() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 10)])
    assert left_out(aborted, data(10)) == [10]

    aborted.add([(1, 10)])

    assert left_out(aborted, data(12), marker(14), data(15)) == [12, 14]


def test_a_transaction_that_has_ended_is_over_though_it_is_listed_again() -> None:
    aborted = AbortedTransactions()
    aborted.add([(1, 10)])
    assert left_out(aborted, data(10), marker(12)) == [10, 12]

    aborted.add([(1, 10)])

    assert left_out(aborted, data(13)) == []
