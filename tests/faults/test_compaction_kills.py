"""A broker killed while it compacts, again and again on the same data: the last value of every key is kept (C1 to C5).

FLOWSTONE_FAULTS_COMPACTION_KILLS sets how many kills, FLOWSTONE_FAULTS_SEED where their choice begins. The broker dies
at an exact call of its file port, or it or its worker inside an exact system call, or when so much was acknowledged.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch, checksum_matches, decode_records, parse_header
from tests.support.broker_process import UP, BrokerDied, BrokerProcess
from tests.support.wire_client import whole_batches

from .checker import ACKS_ALL
from .crash_points import HAS_TRACER, CrashPoint, inject, sabotaged
from .raw_client import EARLIEST, LATEST, RawClient

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_COMPACTION_KILLS", "6"))
COMPACTION_S_MAX = 120.0  # a second alone
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
SETTINGS = {
    "log.cleanup.policy": "compact",
    "log.segment.bytes": str(1 << 20),
    "log.segment.delete.delay.ms": "0",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.cleaner.delete.retention.ms": "0",
    "log.cleaner.backoff.ms": "10",
}
PARTITION = TopicPartition("table", 0)
KEYS, VALUE_BYTES, RECORDS_PER_BATCH, BATCHES = 40, 4000, 16, 60
OPERATIONS = {"rename": 30, "sync_directory": 30, "remove": 12, "replace": 12, "open": 60}
SYSTEM_CALLS = {"rename": 30, "fdatasync": 100, "fsync": 20, "pwritev": 150, "ftruncate": 30}


def choose(chance: random.Random) -> CrashPoint:
    way = chance.choice(["operation", "operation", "system call", "acknowledged"])
    if way == "system call" and HAS_TRACER:
        call = chance.choice(list(SYSTEM_CALLS))
        number = chance.randint(1, SYSTEM_CALLS[call])
        return CrashPoint(f"{call} {number}", BATCHES, tracer=inject(call, f"signal=KILL:when={number}"))
    if way == "operation":
        operation = chance.choice(list(OPERATIONS))
        sabotage = ("die_at", operation, chance.randint(1, OPERATIONS[operation]), chance.choice(["before", "after"]))
        return CrashPoint(" ".join(map(str, sabotage)), BATCHES, program=sabotaged(*sabotage))
    return CrashPoint(way, chance.randint(1, BATCHES))


class Table:
    """What was sent and what was acknowledged, by key and by offset."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers: dict[bytes | None, int] = {}
        self.acknowledged: dict[int, Record] = {}
        self.sent: dict[bytes | None, list[bytes | None]] = {b"key %d" % key: [None] for key in range(KEYS)}
        self._promised: dict[bytes | None, int] = dict.fromkeys(self.sent, 0)  # how many of them must not be lost

    def next_batch(self) -> list[Record]:
        records = []
        for at in range(RECORDS_PER_BATCH):
            key = b"key %d" % self._chance.randrange(KEYS)
            value = None if self._chance.random() < 0.1 else self._chance.randbytes(VALUE_BYTES)
            self.sent[key].append(value)
            records.append(Record(at, int(time.time() * 1000), key, value))
        return records

    def acknowledge(self, records: list[Record], base_offset: int) -> None:
        for record in records:
            self.acknowledged[base_offset + record.offset] = record
        self._promised = {key: len(values) - 1 for key, values in self.sent.items()}

    def check(self, found: list[Record]) -> None:
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            acknowledged = self.acknowledged.get(record.offset)
            assert acknowledged is None or acknowledged[1:4] == record[1:4], f"offset {record.offset} has changed"
        last = dict.fromkeys(self.sent) | {record.key: record.value for record in found}
        for key, value in last.items():
            assert value in self.sent[key][self._promised[key] :], f"{key!r} lost its last value"


def read(client: RawClient) -> list[Record]:
    offset, end_offset = client.offset_of(PARTITION, EARLIEST), client.offset_of(PARTITION, LATEST)
    found: list[Record] = []
    while offset < end_offset:
        for batch in whole_batches(client.fetch(PARTITION, offset)):
            header = parse_header(batch)
            assert checksum_matches(batch, 0, header)
            found += decode_records(batch)
            offset = header.next_offset
    return found


def produce(client: RawClient, table: Table, batches: int) -> None:
    for _ in range(batches):
        records = table.next_batch()
        table.acknowledge(records, client.produce(PARTITION, build_batch(records), ACKS_ALL))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // 20, 1)))
def test_a_broker_killed_while_it_compacts_keeps_the_last_value_of_every_key(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table, data = Table(chance), tmp_path / "data"
    with BrokerProcess(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic(PARTITION.topic, 1)
    for _ in range(min(KILLS, 20)):
        point = choose(chance)
        broker = BrokerProcess(data, settings=SETTINGS, program=point.program or UP, tracer=point.tracer)
        try:
            # The point may lie in the start, or in a request.
            with suppress(BrokerDied, ConnectionError), broker, RawClient(broker.bootstrap) as client:
                table.check(read(client))
                produce(client, table, point.acknowledged)
        finally:
            broker.kill()
    with BrokerProcess(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        table.check(read(client))
        wait_until_compacted(client)
        table.check(read(client))
        assert " ERROR " not in broker.output, broker.output
    with BrokerProcess(data, settings={**SETTINGS, "log.cleaner.enable": "false"}):  # that one too may have been at it
        assert not [path for path in (data / "table-0").iterdir() if path.suffix in (".swap", ".cleaned")]


def wait_until_compacted(client: RawClient) -> None:
    """Until only the active segment can hold a key twice."""
    deadline = time.monotonic() + COMPACTION_S_MAX
    while len(read(client)) > KEYS + 2 * (1 << 20) // VALUE_BYTES:
        assert time.monotonic() < deadline, "it is not compacted"
        time.sleep(0.05)
