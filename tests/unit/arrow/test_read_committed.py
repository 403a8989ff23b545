"""`flowstone.read` of committed records, where a topic has aborted data, an open transaction, and end markers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import flowstone
from flowstone.embedded import Broker
from tests.support.transactional_records import (
    ABORTED,
    COMMITTED,
    OPEN,
    TransactionalWriter,
    seen_by_stock_client,
)

TOPIC = "ledger"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic(TOPIC)
        yield broker


@pytest.fixture
def writer(broker: Broker) -> TransactionalWriter:
    return TransactionalWriter(broker.bootstrap, TOPIC)


def read(broker: Broker, *, read_committed: bool = True, **more: object) -> list[tuple[int, str]]:
    """Return offset and value of each row."""
    table = flowstone.read(
        TOPIC, columns=["offset", "value"], read_committed=read_committed, bootstrap=broker.bootstrap, **more
    )
    return [(row["offset"], row["value"].decode()) for row in table.to_pylist()]


def write_all_kinds(writer: TransactionalWriter) -> None:
    """Two transactions that overlap with others, one that follows them alone, and plain records in between."""
    first = writer.write(OPEN, 2)
    second = writer.write(OPEN, 3)
    writer.write_plain("plain 1", "plain 2")
    writer.end(first, ABORTED)
    writer.end(second, COMMITTED)
    writer.write(ABORTED, 2, 2)
    writer.write(COMMITTED, 1, 3)
    writer.write_plain("plain 3")


def test_the_rows_are_those_that_a_stock_consumer_returns(broker: Broker, writer: TransactionalWriter) -> None:
    write_all_kinds(writer)
    rows = read(broker)
    assert rows == seen_by_stock_client(broker.bootstrap, TOPIC)
    assert [value.rpartition(" ")[0] for _, value in rows] == [
        *["open 2"] * 3,
        *["plain"] * 2,
        *["committed 4"] * 4,
        "plain",
    ]
    assert len(read(broker, read_committed=False)) == 2 + 3 + 2 + 4 + 4 + 1


def test_a_range_may_begin_and_end_at_any_offset(broker: Broker, writer: TransactionalWriter) -> None:
    write_all_kinds(writer)
    rows = read(broker)
    end = 2 + 3 + 2 + 2 + 4 + 1 + 4 + 1 + 1  # an end marker takes an offset
    assert max(rows)[0] == end - 1
    for offset in range(end + 1):
        below, above = read(broker, end=offset), read(broker, start=offset)
        assert below == [row for row in rows if row[0] < offset]
        assert above == [row for row in rows if row[0] >= offset]


def test_nothing_after_the_start_of_an_open_transaction_is_read(broker: Broker, writer: TransactionalWriter) -> None:
    writer.write(COMMITTED, 2)
    holder = writer.write(OPEN, 2)
    writer.write(COMMITTED, 2)
    writer.write_plain("plain 1")
    assert [value for _, value in read(broker)] == ["committed 1 0", "committed 1 1"]
    writer.end(holder, ABORTED)
    assert [value.rpartition(" ")[0] for _, value in read(broker)] == ["committed 1"] * 2 + ["committed 3"] * 2 + [
        "plain"
    ]


def test_a_topic_of_aborted_transactions_has_no_rows(broker: Broker, writer: TransactionalWriter) -> None:
    for _ in range(3):
        writer.write(ABORTED, 2)
    assert read(broker) == []
    assert len(read(broker, read_committed=False)) == 6
