"""What is logged of records that were passed over: one line for each kind."""

from __future__ import annotations

import pytest

from flowstone.coordinator.skipped_records import KINDS_MAX, SkippedRecords


def test_each_kind_is_reported_once_whichever_partition_has_it(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedRecords()
    for partition, name in (("t-0", b"a"), ("t-0", b"b"), ("t-1", b"c")):
        skipped.skipped(partition, b"\x00\x03" + name, b"\x00\x01" + name)
    skipped.skipped("t-1", b"\x00\x03", b"\x00\x02")
    skipped.skipped("t-1", b"\x00\x04", None)
    assert [record.args for record in caplog.records] == [("t-0", 3, 1), ("t-1", 3, 2), ("t-1", 4, None)]


def test_a_log_of_any_bytes_does_not_fill_the_log_file(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedRecords()
    for version in range(2 * KINDS_MAX):
        skipped.skipped("t-0", version.to_bytes(2), b"")
    assert len(caplog.records) == KINDS_MAX
