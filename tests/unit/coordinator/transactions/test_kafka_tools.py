"""Kafka's own dump tool decodes the records of `__transaction_state`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from scripts.fetch_kafka import cache_folder

from flowstone.coordinator.record_batches import encode_batches
from flowstone.coordinator.transactions import record_format
from flowstone.coordinator.transactions.records import TransactionRemoved, TransactionState, TransactionStored
from flowstone.types import TopicPartition

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs java and a fetched Kafka (scripts/fetch_kafka.py)",
)


def test_kafkas_dump_tool_decodes_transactions(tmp_path: Path) -> None:
    empty = TransactionStored("first", 7, 3, 60_000, TransactionState.EMPTY, 1_700_000_000_000)
    partitions = frozenset({TopicPartition("t", 1), TopicPartition("t", 0), TopicPartition("u", 2)})
    prepared = TransactionStored(
        "second",
        8,
        32_767,
        60_000,
        TransactionState.PREPARE_COMMIT,
        1_700_000_000_001,
        partitions,
        1_700_000_000_000,
        previous_producer_id=8,
        next_producer_id=9,
        last_producer_epoch=32_766,
        client_version=2,
    )
    records = [empty, prepared, TransactionRemoved("third")]
    (batch,) = encode_batches(record_format, records, 1_700_000_000_000, 1 << 20)
    segment = tmp_path / f"{0:020}.log"
    segment.write_bytes(batch)
    told = _dump(segment)
    lines = [line for line in told.splitlines() if "payload:" in line]
    assert '"transactionalId":"first"' in lines[0]
    assert '"producerId":7' in lines[0]
    assert '"transactionPartitions":null' in lines[0]
    for field in (
        '"transactionalId":"second"',
        '"producerId":8',
        '"previousProducerId":8',
        '"nextProducerId":9',
        '"producerEpoch":32767',
        '"transactionTimeoutMs":60000',
        '"transactionStatus":2',
        '{"topic":"t","partitionIds":[0,1]},{"topic":"u","partitionIds":[2]}',
        '"transactionLastUpdateTimestampMs":1700000000001',
        '"transactionStartTimestampMs":1700000000000',
        '"clientTransactionVersion":2',
    ):
        assert field in lines[1], field
    assert '"transactionalId":"third"' in lines[2]
    assert lines[2].endswith("payload: <DELETE>")


def _dump(segment: Path) -> str:
    tool = "org.apache.kafka.tools.DumpLogSegments"
    java = ["java", "-Xmx256m", "-cp", f"{cache_folder()}/*"]
    command = [*java, tool, "--transaction-log-decoder", "--files", str(segment)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
