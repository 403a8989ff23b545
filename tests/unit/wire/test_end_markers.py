from __future__ import annotations

import pytest

from flowstone.wire.end_markers import EndMarker, end_marker, read_end_marker
from flowstone.wire.record_batch import NO_SEQUENCE, Record, build_batch, decode_records, parse_header


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_marker_is_read_as_it_was_made(is_commit: bool) -> None:
    batch = end_marker(7, 3, 11, is_commit, 1234)
    header = parse_header(batch)
    assert read_end_marker(batch, 0, header) == EndMarker(is_commit, 11)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, NO_SEQUENCE)


def test_a_marker_has_the_bytes_that_kafka_writes() -> None:
    batch = end_marker(7, 3, 11, True, 1234)
    assert len(batch) == 78
    assert parse_header(batch).attributes == 0x30
    (record,) = decode_records(batch)
    assert (record.key, record.value) == (bytes.fromhex("00000001"), bytes.fromhex("00000000000b"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, bytes(6)),
        (b"\0\0\0", bytes(6)),
        (b"\0\0\0\2", bytes(6)),  # the control record of a quorum's leader
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\0"),
    ],
)
def test_another_control_batch_is_no_marker(key: bytes | None, value: bytes | None) -> None:
    batch = build_batch([Record(0, 0, key, value)], producer_id=7, is_transactional=True, is_control=True)
    assert read_end_marker(batch, 0, parse_header(batch)) is None


def test_a_marker_with_fields_of_a_later_version_is_read() -> None:
    record = Record(0, 0, b"\0\1\0\0extra", b"\0\1\0\0\0\5extra")
    batch = build_batch([record], producer_id=7, is_transactional=True, is_control=True)
    assert read_end_marker(batch, 0, parse_header(batch)) == EndMarker(False, 5)


def test_damaged_bytes_are_no_marker() -> None:
    batch = bytearray(end_marker(7, 3, 11, True, 1234))
    batch[61] = 0x80  # the record's length
    assert read_end_marker(bytes(batch), 0, parse_header(batch)) is None
    assert read_end_marker(bytes(batch[:70]), 0, parse_header(batch)) is None
