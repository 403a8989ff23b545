"""Reading changes nothing: consuming, listing, describing and verifying leave every byte of the logs as it was."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from .filled_broker import FilledBroker
from .raw_client import EARLIEST, LATEST, RawClient
from .rounds import TOPIC

READ_TIMEOUT_S = 10
BY_TIME = 0


def fingerprints(data: Path) -> dict[str, str]:
    """Of every file of the topic's partitions."""
    files = [path for path in data.glob(f"{TOPIC}-*/*") if path.is_file()]
    return {str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


def test_reading_in_every_way_changes_no_byte_on_disk(
    filled: FilledBroker, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert filled.start().wait_ready().terminate() == 0
    with filled.start() as broker:
        before = fingerprints(filled.data)
        assert len(before) > 10
        with RawClient(broker.bootstrap) as client:
            assert not filled.check(client), broker.output
            for partition in filled.partitions:
                for timestamp in (EARLIEST, LATEST, BY_TIME):
                    client.offset_of(partition, timestamp)
        _consume_everything(broker.bootstrap, filled)
        AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=READ_TIMEOUT_S)
        assert run("topic", "list", "--bootstrap", broker.bootstrap).returncode == 0
        assert run("log", "verify", filled.data).returncode == 0
        assert run("log", "dump", filled.data / str(filled.partitions[0])).returncode == 0
        assert fingerprints(filled.data) == before


def _consume_everything(bootstrap: str, filled: FilledBroker) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False, "check.crcs": True}
    )
    ends = {
        p: consumer.get_watermark_offsets(ClientPartition(*p), timeout=READ_TIMEOUT_S)[1] for p in filled.partitions
    }
    consumer.assign([ClientPartition(*partition, 0) for partition in filled.partitions])
    missing = sum(ends.values())
    while missing:
        messages = consumer.consume(missing, READ_TIMEOUT_S)
        assert messages
        assert not any(message.error() for message in messages)
        missing -= len(messages)
    consumer.close()
