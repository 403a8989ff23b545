"""What happens to logs in their lives, as scenes: how it is set off, when it is over, and what must be true though the
broker dies in between.

Each scene plays on a copy of one data directory: a topic of several segments with a group's offsets in it, and a
compacted table. Whatever the scene, all records that it does not concern are there afterwards, and what the crash
interrupted comes to its end with the next life, or can be asked for again.
"""

from __future__ import annotations

import http.client
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flowstone.log.lifecycle.directory_identity import DELETE_SUFFIX
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import whole_batches

from .admin_client import AdminClient
from .checker import ACKS_ALL
from .raw_client import EARLIEST, LATEST, RawClient, Refused

ORDERS, TABLE, BRANCH = "orders", "table", "orders-dev"
PARTITIONS = [TopicPartition(ORDERS, 0), TopicPartition(ORDERS, 1)]
TABLE_PARTITION = TopicPartition(TABLE, 0)
GROUP, GROUP_OFFSET = "readers", 3
SEGMENT_BYTES = 1 << 20
START_MS = 1_700_000_000_000  # of the first record; the others follow, one a millisecond
VALUE_BYTES, RECORDS_PER_BATCH, BATCHES = 20_000, 10, 14  # nearly three segments
KEYS = 20
WAIT_S = 20.0
POLL_S = 0.01
# Nothing happens by itself but checkpoints, until a scene sets it off: then at once.
SETTINGS: Mapping[str, str] = {
    "http.listener": "127.0.0.1:0",
    "log.segment.bytes": str(SEGMENT_BYTES),
    "log.segment.delete.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "30",
    "log.cleaner.backoff.ms": "10",
    "log.cleaner.delete.retention.ms": "0",
    "offsets.topic.num.partitions": "1",
}


class Truth(NamedTuple):
    """What was acknowledged, in order."""

    orders: dict[TopicPartition, list[Record]]
    table: list[Record]


def start(data: Path) -> BrokerProcess:
    return BrokerProcess(data, settings=SETTINGS)


def fill(data: Path) -> Truth:
    with start(data) as broker, AdminClient(broker.bootstrap) as client:
        client.create_topic(ORDERS, len(PARTITIONS))
        client.create_topic(TABLE, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1"})
        for number in range(BATCHES):
            for partition in (*PARTITIONS, TABLE_PARTITION):
                records = [_record(number * RECORDS_PER_BATCH + at, at) for at in range(RECORDS_PER_BATCH)]
                client.produce(partition, build_batch(records), ACKS_ALL)
        for partition in PARTITIONS:
            client.commit(GROUP, partition, GROUP_OFFSET)
        return Truth({each: read(client, each) for each in PARTITIONS}, read(client, TABLE_PARTITION))


def _record(number: int, at: int) -> Record:
    value = None if number % 7 == 0 else b"%d " % number * (VALUE_BYTES // len(b"%d " % number))
    return Record(at, START_MS + number, b"key %d" % (number % KEYS), value)


def read(client: RawClient, partition: TopicPartition) -> list[Record]:
    """The whole partition, its checksums checked by the decoder's own means."""
    offset, end_offset = client.offset_of(partition, EARLIEST), client.offset_of(partition, LATEST)
    start_offset, found = offset, list[Record]()
    while offset < end_offset:
        for batch in whole_batches(client.fetch(partition, offset)):
            found += decode_records(batch)
            offset = parse_header(batch).next_offset
    return [record for record in found if record.offset >= start_offset]


def read_the_rest(client: RawClient, partition: TopicPartition) -> list[Record]:
    """What retention has left of it, where it goes on meanwhile."""
    while True:
        with suppress(Refused):  # what was to be read next has gone
            return read(client, partition)


class Scene(ABC):
    """One operation on a copy of the filled data."""

    def __init__(self, data: Path, truth: Truth, is_over: Callable[[], bool] = lambda: False) -> None:
        """`is_over` ends the waiting: a process of the broker's was killed."""
        self.data, self.truth, self._is_over = data, truth, is_over

    @abstractmethod
    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        """Sets it off and waits until it is over, unless the broker dies. ConnectionError and OSError are its death."""

    @abstractmethod
    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        """In the next life: nothing is lost, nothing is half done, and it can be done again."""

    def wait_until(self, done: Callable[[], bool], broker: BrokerProcess) -> None:
        """Until it is done, or somebody is dead."""
        deadline = time.monotonic() + WAIT_S
        while broker.is_running and not self._is_over() and not done():
            assert time.monotonic() < deadline, broker.output
            time.sleep(POLL_S)

    def names(self, topic: str) -> list[str]:
        """Of directories that are the topic's, or were to be; those that are condemned go in their time."""
        names = [path.name for path in self.data.iterdir() if path.name.startswith(f"{topic}-") and path.is_dir()]
        return [name for name in names if not name.endswith(DELETE_SUFFIX)]

    def check_orders(self, client: AdminClient) -> None:
        for partition, records in self.truth.orders.items():
            assert read(client, partition) == records

    def check_table(self, client: AdminClient) -> None:
        found = read(client, TABLE_PARTITION)
        by_offset = {record.offset: record for record in self.truth.table}
        assert all(by_offset[record.offset] == record for record in found), "a record has changed"
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert _last_values(found) == _last_values(self.truth.table)


def _last_values(records: list[Record]) -> dict[bytes | None, bytes]:
    """The table that the records make."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


class Compaction(Scene):
    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        client.alter_topic(TABLE, {"min.cleanable.dirty.ratio": "0"})
        self._wait(broker)

    def _wait(self, broker: BrokerProcess) -> None:
        """Until its checkpoint says so, and what it replaced is gone."""
        checkpoint = self.data / "cleaner-offset-checkpoint"
        self.wait_until(lambda: checkpoint.exists() and f"{TABLE} 0 " in checkpoint.read_text(), broker)
        self.wait_until(lambda: not list((self.data / f"{TABLE}-0").glob("*.deleted")), broker)

    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        self.check_orders(client)
        self.check_table(client)
        client.alter_topic(TABLE, {"min.cleanable.dirty.ratio": "0"})
        self._wait(broker)
        self.check_table(client)
        assert len(read(client, TABLE_PARTITION)) < len(self.truth.table)
        assert not [path.name for path in (self.data / f"{TABLE}-0").iterdir() if path.suffix in (".cleaned", ".swap")]


class Retention(Scene):
    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        client.alter_topic(ORDERS, {"retention.bytes": str(SEGMENT_BYTES)})
        self.wait_until(lambda: all(self._segments(each) == 2 for each in PARTITIONS), broker)
        self.wait_until(lambda: not list(self.data.glob("*/*.deleted")), broker)

    def _segments(self, partition: TopicPartition) -> int:
        return len(list((self.data / str(partition)).glob("*.log")))

    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        self.check_table(client)
        for partition, records in self.truth.orders.items():
            found = read_the_rest(client, partition)
            assert found == records[len(records) - len(found) :]
            assert found
        self.act(broker, client)
        for partition, records in self.truth.orders.items():
            start_offset = client.offset_of(partition, EARLIEST)
            assert 0 < start_offset < len(records)
            assert read(client, partition) == records[start_offset:]


class Expiry(Scene):
    """All that there is goes: the segment that is written to is sealed for it."""

    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        client.alter_topic(ORDERS, {"retention.ms": "1000"})
        self.wait_until(lambda: all(not self._sizes(each) for each in PARTITIONS), broker)
        self.wait_until(lambda: not list(self.data.glob("*/*.deleted")), broker)

    def _sizes(self, partition: TopicPartition) -> int:
        """Of the log's segments, those that go included."""
        sizes = 0
        for path in (self.data / str(partition)).glob("*.log*"):
            with suppress(FileNotFoundError):
                sizes += path.stat().st_size
        return sizes

    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        self.check_table(client)
        for partition, records in self.truth.orders.items():
            assert client.offset_of(partition, LATEST) == len(records)
            found = read_the_rest(client, partition)
            assert found == records[len(records) - len(found) :]
        self.act(broker, client)
        for partition, records in self.truth.orders.items():
            assert client.offset_of(partition, EARLIEST) == client.offset_of(partition, LATEST) == len(records)
            batch = build_batch([Record(0, int(time.time() * 1000), b"k", b"v")])
            assert client.produce(partition, batch, ACKS_ALL) == len(records)


class Branching(Scene):
    """With the group's offsets."""

    time_ms: int | None = None
    record_count = BATCHES * RECORDS_PER_BATCH

    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        self._branch(broker, BRANCH)

    def _branch(self, broker: BrokerProcess, target: str) -> None:
        lines = (self.data / "meta.properties").read_text().splitlines()
        cluster_id = next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))
        asked = {"cluster_id": cluster_id, "source": ORDERS, "target": target, "time_ms": self.time_ms, "groups": True}
        address = broker.lines_about("http ")[0].split()[1]
        connection = http.client.HTTPConnection(address, timeout=WAIT_S)
        try:
            connection.request("POST", "/branch", json.dumps(asked), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        except http.client.HTTPException as error:
            raise ConnectionError from error
        finally:
            connection.close()
        assert answer["state"] == "done", answer
        assert answer["groups"] == [GROUP]

    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        self.check_orders(client)
        self.check_table(client)
        offsets = client.committed(GROUP)
        if BRANCH in client.topics():
            self._check_branch(client, BRANCH)
        else:
            self.wait_until(lambda: not self.names(BRANCH), broker)
            assert {each.topic for each in offsets} == {ORDERS}
        self._branch(broker, "again")
        self._check_branch(client, "again")
        assert client.committed(GROUP)[TopicPartition("again", 0)] == GROUP_OFFSET
        self._check_apart(client, "again")
        self.check_table(client)

    def _check_branch(self, client: AdminClient, topic: str) -> None:
        for partition, records in self.truth.orders.items():
            assert read(client, TopicPartition(topic, partition.partition)) == records[: self.record_count]

    def _check_apart(self, client: AdminClient, topic: str) -> None:
        """What is written to either side stays there."""
        branch = TopicPartition(topic, 0)
        for partition in (PARTITIONS[0], branch):
            client.produce(partition, build_batch([Record(0, 1, b"to", str(partition).encode())]), ACKS_ALL)
        for partition in (PARTITIONS[0], branch):
            assert read(client, partition)[-1].value == str(partition).encode()
        assert len(read(client, PARTITIONS[0])) == len(self.truth.orders[PARTITIONS[0]]) + 1
        assert len(read(client, branch)) == self.record_count + 1


class PastBranching(Branching):
    """A segment is copied, and a batch is cut."""

    record_count = BATCHES * RECORDS_PER_BATCH - 25
    time_ms = START_MS + record_count


class Deletion(Scene):
    def act(self, broker: BrokerProcess, client: AdminClient) -> None:
        client.delete_topic(ORDERS)
        self.wait_until(lambda: not self.names(ORDERS), broker)

    def check(self, broker: BrokerProcess, client: AdminClient) -> None:
        self.check_table(client)
        if ORDERS in client.topics():
            self.check_orders(client)
            self.act(broker, client)
        self.wait_until(lambda: not self.names(ORDERS), broker)
        client.create_topic(ORDERS, len(PARTITIONS))
        for partition in PARTITIONS:
            assert client.produce(partition, build_batch([Record(0, 1, b"k", b"v")]), ACKS_ALL) == 0


SCENES: list[type[Scene]] = [Compaction, Retention, Expiry, Branching, PastBranching, Deletion]
