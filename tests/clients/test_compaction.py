"""A table in a compacted topic: Java's consumer makes of it what was written, whatever the codec."""

from __future__ import annotations

import random
import time
from pathlib import Path

from flowstone.embedded import Broker
from tests.clients.confluent_driver import ConfluentDriver
from tests.clients.conftest import Java
from tests.clients.driver import Sent

KEYS, RECORDS, VALUE_BYTES = 50, 3000, 1500
COMPACT = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20), "min.cleanable.dirty.ratio": "0"}
SETTINGS = {"log.cleaner.backoff.ms": "20", "flush.messages": "100000"}
COMPACTED_TIMEOUT_S = 30


def java_table(java: Java, bootstrap: str, topic: str, timeout_ms: int) -> dict[str, str]:
    """What the console consumer reads until it has waited for a record for this long, its own start included."""
    text = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--timeout-ms", str(timeout_ms)),
        *("--formatter-property", "print.key=true", "--formatter-property", "null.literal=<gone>"),
    )
    table = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return {key: value for key, value in table.items() if value != "<gone>"}


def test_javas_consumer_builds_the_table_that_was_written(java: Java, tmp_path: Path) -> None:
    rng = random.Random(3)
    expected: dict[str, str] = {}
    with Broker(data=str(tmp_path), settings=SETTINGS) as broker:
        client = ConfluentDriver(broker.bootstrap)
        client.create_topic("table", 1, COMPACT)
        for codec in client.codecs:
            batch = []
            for _ in range(RECORDS // len(client.codecs)):
                key = f"key {rng.randrange(KEYS)}"
                value = None if rng.random() < 0.1 else rng.randbytes(VALUE_BYTES // 2).hex()
                batch.append(Sent(value.encode() if value is not None else None, key.encode()))
                expected.pop(key, None)
                if value is not None:
                    expected[key] = value
            client.produce("table", batch, compression=codec, idempotent=True)
        log_files = tmp_path / "table-0"
        deadline = time.monotonic() + COMPACTED_TIMEOUT_S
        while sum(path.stat().st_size for path in log_files.glob("*.log")) > RECORDS * VALUE_BYTES // 2:
            assert time.monotonic() < deadline, "it was not compacted"
            time.sleep(0.05)
        # A console consumer on a busy machine may need longer than that to begin.
        table = java_table(java, broker.bootstrap, "table", 3000)
        if len(table) < len(expected):
            table = java_table(java, broker.bootstrap, "table", 30_000)
        assert table == expected
