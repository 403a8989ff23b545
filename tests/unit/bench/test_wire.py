"""The load program's batches, read by a decoder that nobody here wrote."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords

from bench import wire


def test_a_batch_is_what_another_client_reads() -> None:
    batch = wire.record_batch(16_000, value_bytes=100, timestamp_ms=1_700_000_000_000)
    decoded = MemoryRecords(batch.data).next_batch()
    assert decoded.validate_crc()
    records = list(decoded)
    assert [record.offset for record in records] == list(range(batch.records))
    assert {len(record.value) for record in records} == {100}
    assert {record.timestamp for record in records} == {1_700_000_000_000}


@pytest.mark.parametrize("size_bytes", [16_000, 64_000, 1_000_000])
def test_a_batch_fills_its_size_but_for_less_than_a_record(size_bytes: int) -> None:
    batch = wire.record_batch(size_bytes, value_bytes=100, timestamp_ms=0)
    assert size_bytes - 120 < len(batch.data) <= size_bytes


def test_a_value_too_large_for_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        wire.record_batch(100, value_bytes=100, timestamp_ms=0)
