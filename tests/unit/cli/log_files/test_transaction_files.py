"""Texts of what transactions leave in files."""

from __future__ import annotations

from pathlib import Path

from flowstone.cli.log_files.transaction_files import (
    holds_transaction_state,
    is_transaction_file,
    marker_document,
    marker_text,
    state_document,
    state_of,
    state_text,
)
from flowstone.coordinator.transactions.record_format import encode
from flowstone.coordinator.transactions.records import TransactionRemoved, TransactionState, TransactionStored
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import Record

NAME = "00000000000000000007"


def test_markers_are_named_by_their_decision() -> None:
    assert marker_text(EndMarker(True, 3)) == "COMMIT of coordinator epoch 3"
    assert marker_document(EndMarker(False, 4)) == {"type": "ABORT", "coordinator_epoch": 4}
    assert marker_document(None) is None


def test_files_are_known_by_their_names() -> None:
    assert is_transaction_file(f"/data/orders-0/{NAME}.txnindex")
    assert is_transaction_file(f"{NAME}.snapshot")
    assert not is_transaction_file(f"{NAME}.log")
    assert not is_transaction_file("7.snapshot")


def test_the_topic_is_read_off_the_directory(tmp_path: Path) -> None:
    assert holds_transaction_state(str(tmp_path / "__transaction_state-12" / f"{NAME}.log"))
    assert not holds_transaction_state(str(tmp_path / "orders-12" / f"{NAME}.log"))


def test_states_and_tombstones_are_told() -> None:
    stored = TransactionStored("tx", 5, 1, 60_000, TransactionState.EMPTY, 1_000)
    record = Record(0, 0, *encode(stored))
    assert state_of(record) == stored
    assert state_text(stored) == "tx: Empty, producer 5/1, timeout 60000 ms, started none, partitions none"
    removed = TransactionRemoved("tx")
    assert state_of(Record(0, 0, *encode(removed))) == removed
    assert state_text(removed) == "tx: removed"
    assert state_document(removed) == {"transactional_id": "tx", "state": None}
    assert state_of(Record(0, 0, b"\x00\x00", b"nonsense")) is None
