"""What is logged of records that were passed over: one line for each kind."""

from __future__ import annotations

import pytest

from flowstone.coordinator.skipped_records import KINDS_MAX, SkippedRecords


def test_each_kind_is_reported_once_whichever_partition_has_it(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedRecords()
    for partition, kind in (("t-0", "type 3"), ("t-0", "type 3"), ("t-1", "type 3"), ("t-1", "type 4")):
        skipped.skipped(partition, kind)
    assert [record.args for record in caplog.records] == [("t-0", "type 3"), ("t-1", "type 4")]


def test_a_log_of_any_bytes_does_not_fill_the_log_file(caplog: pytest.LogCaptureFixture) -> None:
    skipped = SkippedRecords()
    for kind in range(2 * KINDS_MAX):
        skipped.skipped("t-0", f"type {kind}")
    assert len(caplog.records) == KINDS_MAX
