"""Transaction markers in Kafka's binary form. The expected bytes were written down by hand."""

from __future__ import annotations

from struct import pack

import pytest

from flowstone.wire.record_batch import CorruptBatch, Record, build_batch, decode_records, parse_header
from flowstone.wire.transaction_markers import TransactionMarker, decode_marker, encode_marker

COMMIT = TransactionMarker(7, 3, is_commit=True, coordinator_epoch=5)
ABORT = TransactionMarker(8, 32767, is_commit=False, coordinator_epoch=-1)


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
def test_a_marker_is_read_as_it_was_written(marker: TransactionMarker) -> None:
    batch = encode_marker(marker, 1000)
    assert decode_marker(parse_header(batch), decode_records(batch)) == marker


def test_a_marker_is_kafkas_control_batch_of_78_bytes() -> None:
    batch = encode_marker(COMMIT, 1000)
    header, (record,) = parse_header(batch), decode_records(batch)
    assert (len(batch), header.attributes, header.base_sequence) == (78, 0x30, -1)
    assert (header.producer_id, header.producer_epoch, header.max_timestamp) == (7, 3, 1000)
    assert (record.key, record.value) == (pack(">hh", 0, 1), pack(">hi", 0, 5))
    assert decode_records(encode_marker(ABORT, 1000))[0].key == pack(">hh", 0, 0)


def test_other_control_records_are_no_markers() -> None:
    batch = build_batch([Record(0, 0, pack(">hh", 0, 2), b"")], is_control=True)
    assert decode_marker(parse_header(batch), decode_records(batch)) is None


def test_a_marker_whose_record_compaction_took_is_none() -> None:
    assert decode_marker(parse_header(encode_marker(COMMIT, 0)), []) is None


@pytest.mark.parametrize(
    ("key", "value"), [(b"\0\0\0", b""), (None, b""), (pack(">hh", 0, 1), b"\0\0"), (pack(">hh", 0, 0), None)]
)
def test_a_marker_that_is_cut_short_is_refused(key: bytes | None, value: bytes | None) -> None:
    batch = build_batch([Record(0, 0, key, value)], is_control=True)
    with pytest.raises(CorruptBatch):
        decode_marker(parse_header(batch), decode_records(batch))
