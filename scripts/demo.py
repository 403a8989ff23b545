"""The main job end to end: `make demo`.

A broker as its own process, 200,000 keyed records in with acks=all, two reads from places in the past, a group of three
that loses a member while it reads, the broker killed with SIGKILL, started again, and everything counted and compared.
Exits with 1 if a record is missing or changed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from rich.console import Console
from rich.table import Table

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.demo_group import MEMBERS, SESSION_MS, run_group  # noqa: E402 - after the path is set

RECORDS = 200_000
PARTITIONS = 4
KEYS = 5_000
VALUE_BYTES = 100
TOPIC = "orders"
READY_TIMEOUT_S = 30
READ_TIMEOUT_S = 30
# Records are one millisecond apart and end now, so that any time in between names a known record.
FROM_TIME_RECORD = 150_000
SETTINGS = {
    "num.partitions": PARTITIONS,
    # So that the loss of a member is noticed while somebody watches.
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
}


class Step(NamedTuple):
    name: str
    figure: str
    good: bool


class Sum:
    """A count and a checksum of records, in whatever order they come."""

    def __init__(self) -> None:
        self.records = 0
        self.checksum = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.records += 1
        self.checksum = (self.checksum + zlib.crc32(value, zlib.crc32(key))) % 2**64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.records, self.checksum) == (other.records, other.checksum)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.records:,} records, checksum {self.checksum:016x}"


class BrokerProcess:
    """`flowstone up` in a data directory."""

    def __init__(self, data_directory: str, address: str) -> None:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "flowstone.cli", "up", "--data", data_directory, "--listen", address]
        settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
        self._process = subprocess.Popen(
            [*command, "--http", "127.0.0.1:0", *settings, "--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self.http_address = ""
        for line in self._process.stdout:
            if line.startswith("http "):
                self.http_address = line.split()[1]
            if line.startswith("ready "):
                self.address = line.split()[1]
                break
        if not self.address:
            raise SystemExit("demo: the broker did not start; it says why above")
        self.ready_s = time.perf_counter() - begun

    def kill(self) -> None:
        self._process.kill()
        self._wait()

    def stop(self) -> float:
        begun = time.perf_counter()
        self._process.terminate()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def client_config(address: str) -> dict[str, Any]:
    return {"bootstrap.servers": address, "log_level": 0}  # the broker's death is part of the show


def produce(address: str, first_ms: int) -> tuple[Sum, Sum, float]:
    """What was sent, what was acknowledged, and the seconds it took."""
    sent, acknowledged = Sum(), Sum()

    def on_delivery(error: object, message: Message) -> None:
        if error is None:
            acknowledged.add(_bytes(message.key()), _bytes(message.value()))

    producer = Producer(
        {
            **client_config(address),
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 10,
            "on_delivery": on_delivery,
        }
    )
    begun = time.perf_counter()
    for number in range(RECORDS):
        key, value = b"customer-%d" % (number % KEYS), (b"order %d " % number).ljust(VALUE_BYTES, b".")
        while True:
            try:
                producer.produce(TOPIC, value, key, timestamp=first_ms + number)
                break
            except BufferError:
                producer.poll(0.1)
        sent.add(key, value)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(READ_TIMEOUT_S)
    return sent, acknowledged, time.perf_counter() - begun


@contextmanager
def open_consumer(address: str) -> Iterator[Consumer]:
    consumer = Consumer({**client_config(address), "group.id": "demo", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def end_offsets(consumer: Consumer) -> dict[int, int]:
    bounds = {each: consumer.get_watermark_offsets(TopicPartition(TOPIC, each), 10) for each in range(PARTITIONS)}
    return {each: end for each, (_first, end) in bounds.items()}


def read(consumer: Consumer, starts: dict[int, int]) -> tuple[Sum, list[int], float]:
    """Everything from the given offsets to the end: its sum, its timestamps and the seconds it took."""
    ends = end_offsets(consumer)
    left = {each for each, start in starts.items() if start < ends[each]}
    total, times = Sum(), list[int]()
    begun = time.perf_counter()
    consumer.assign([TopicPartition(TOPIC, each, starts[each]) for each in left])
    while left and time.perf_counter() - begun < READ_TIMEOUT_S:
        for message in consumer.consume(10_000, 1):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                raise KafkaException(error)
            assert partition is not None
            assert offset is not None
            total.add(_bytes(message.key()), _bytes(message.value()))
            times.append(message.timestamp()[1])
            if offset == ends[partition] - 1:
                left.discard(partition)
    return total, times, time.perf_counter() - begun


def _bytes(data: str | bytes | None) -> bytes:
    assert isinstance(data, bytes)
    return data


def read_the_past(address: str, first_ms: int) -> Iterator[Step]:
    """From an offset of one partition, and from a time over all of them."""
    with open_consumer(address) as consumer:
        end = end_offsets(consumer)[0]
        found, _times, _took = read(consumer, {0: end // 2})
        good = found.records == end - end // 2
        yield Step(f"read partition 0 from offset {end // 2:,}", f"{found.records:,} records", good)
    with open_consumer(address) as consumer:
        time_ms = first_ms + FROM_TIME_RECORD
        asked = [TopicPartition(TOPIC, each, time_ms) for each in range(PARTITIONS)]
        starts = {each.partition: each.offset for each in consumer.offsets_for_times(asked, timeout=10)}
        found, times, _took = read(consumer, starts)
        good = found.records == RECORDS - FROM_TIME_RECORD and min(times) == time_ms
        yield Step(f"read from {_clock(time_ms)} on", f"{found.records:,} records", good)


def read_as_group(broker: BrokerProcess) -> Iterator[Step]:
    """Three members share the partitions; one is killed, the others take over."""
    with open_consumer(broker.address) as consumer:
        ends = end_offsets(consumer)
    outcome = run_group(broker.address, broker.http_address, TOPIC, ends)
    shares = " + ".join(map(str, reversed(outcome.shares)))
    yield Step(f"a group of {MEMBERS} reads", f"partitions shared out {shares}", len(outcome.shares) == MEMBERS)
    yield Step("kill -9 one of them", f"taken over in {outcome.takeover_s:.1f} s", bool(outcome.takeover_s))
    yield Step("the reason the broker gives", outcome.reason, bool(outcome.reason))
    falling = [outcome.lags[len(outcome.lags) * part // 4] for part in range(4)] if outcome.lags else []
    yield Step("its lag", " → ".join(f"{lag:,}" for lag in (*falling, 0)), bool(falling))
    told = f"{outcome.missing} missing, {outcome.repeated:,} read again after the kill"
    yield Step("what the group has read", told, outcome.missing == 0)


def _clock(time_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ms / 1000)) + f".{time_ms % 1000:03d}"


def run(data_directory: str) -> Iterator[Step]:
    broker = BrokerProcess(data_directory, "127.0.0.1:0")
    try:
        yield Step("start `flowstone up`", f"ready in {broker.ready_s:.2f} s", True)
        admin = AdminClient(client_config(broker.address))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        first_ms = int(time.time() * 1000) - RECORDS
        sent, acknowledged, took_s = produce(broker.address, first_ms)
        rate = f"{RECORDS / took_s:,.0f} records/s, {RECORDS * VALUE_BYTES / took_s / 1e6:.0f} MB/s"
        yield Step(f"{RECORDS:,} keyed records in, acks=all, {PARTITIONS} partitions", rate, sent == acknowledged)
        yield from read_the_past(broker.address, first_ms)
        yield from read_as_group(broker)
        broker.kill()
        yield Step("kill -9", "no warning given", True)
        broker = BrokerProcess(data_directory, broker.address)
        yield Step("start again", f"ready in {broker.ready_s:.2f} s", True)
        with open_consumer(broker.address) as consumer:
            found, _times, took_s = read(consumer, dict.fromkeys(range(PARTITIONS), 0))
        yield Step("read everything", f"{found.records / took_s:,.0f} records/s", found.records == RECORDS)
        yield Step("the same as was acknowledged", str(found), found == acknowledged)
        yield Step("stop", f"clean in {broker.stop():.2f} s", True)
    finally:
        broker.kill()


def main() -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(
        title="Flowstone: records in, back out of the past, through a group, and through a kill -9",
        title_justify="left",
    )
    table.add_column("step")
    table.add_column("figure")
    table.add_column("good")
    all_good = True
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowstone-demo-") as data_directory:
        for step in run(data_directory):
            table.add_row(step.name, step.figure, "yes" if step.good else "NO", style=None if step.good else "bold red")
            all_good = all_good and step.good
    console.print(table)
    outcome = "everything is there" if all_good else "SOMETHING IS MISSING"
    console.print(f"{outcome}; {time.perf_counter() - begun:.1f} s in all")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
