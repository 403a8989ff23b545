"""Kafka's own tools about transactions: kafka-transactions.sh, kafka-dump-log.sh and kafka-features.sh."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

import flowstone
from tests.clients.conftest import Java
from tests.clients.driver import TIMEOUT_S
from tests.support.running_app import RunningApp
from tests.support.security.secured_suites import added_listener
from tests.support.transactional_topic import TransactionalTopic

TOPIC = "orders"
HANGING = 93_001
Tool = Callable[..., str]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), **added_listener()) as running:
        with running.client() as client:
            assert client.create_topic(TOPIC, partitions=2) == 0
        yield running


def address(app: RunningApp) -> str:
    """The address for clients: of the secured listener, if the suites run over one."""
    return "{}:{}".format(*list(app.app.addresses.values())[-1])


@pytest.fixture
def transactions(java: Java, app: RunningApp) -> Tool:
    """Runs kafka-transactions.sh; the rows of its table, without the head, tabs between their columns."""

    def run(*arguments: str) -> str:
        told = java("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", address(app), *arguments)
        lines = [line for line in told.splitlines() if "\t" in line and not line.startswith("SLF4J")]
        return "\n".join(re.sub(r" *\t", "\t", line) for line in lines[1:])

    return run


def producer_of(bootstrap: str, transactional_id: str) -> ck.Producer:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0}
    producer = ck.Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: ck.Producer, partition: int, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def test_the_tool_lists_and_describes_an_open_transaction_and_terminates_it(
    app: RunningApp, transactions: Tool
) -> None:
    producer = producer_of(address(app), "tx-1")
    write(producer, 1, b"first")
    producer.commit_transaction(TIMEOUT_S)
    write(producer, 1, b"second")
    name, coordinator, producer_id, state = transactions("list").split("\t")[:4]
    assert (name, coordinator, state) == ("tx-1", "1", "Ongoing")
    assert transactions("list", "--transactional-id-pattern", "ty.*") == ""
    described = transactions("describe", "--transactional-id", "tx-1").split("\t")
    assert described[:3] == ["1", "tx-1", producer_id]
    assert described[4:6] == ["Ongoing", "60000"]
    assert described[8] == f"{TOPIC}-1"
    known = transactions("describe-producers", "--topic", TOPIC, "--partition", "1").split("\t")
    assert (known[0], known[3], known[5]) == (producer_id, "1", "2")
    assert transactions("find-hanging", "--topic", TOPIC, "--max-transaction-timeout", "0") == ""
    transactions("forceTerminateTransaction", "--transactionalId", "tx-1")
    assert transactions("list").split("\t")[3] == "Empty"


def test_the_tool_finds_a_hanging_transaction_and_aborts_it(app: RunningApp, transactions: Tool) -> None:
    topic = TransactionalTopic(app, TOPIC)
    topic.write(HANGING, b"never ended", epoch=2)
    topic.write_plain(b"plain")
    at_once = ("--max-transaction-timeout", "0")
    found = transactions("find-hanging", "--broker-id", "1", *at_once).split("\t")
    assert found[:6] == [TOPIC, "0", str(HANGING), "2", "-1", "0"]
    transactions("abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0")
    assert transactions("find-hanging", "--broker-id", "1", *at_once) == ""
    topic.write(HANGING, b"again", epoch=3)
    transactions(
        *("abort", "--topic", TOPIC, "--partition", "0"),
        *("--producer-id", str(HANGING), "--producer-epoch", "3", "--coordinator-epoch", "0"),
    )
    table = flowstone.read(TOPIC, columns=["value"], read_committed=True, bootstrap=address(app))
    assert table["value"].to_pylist() == [b"plain"]


def test_the_tool_asks_a_follower_about_its_partitions(java: Java) -> None:
    """`find-hanging --broker-id` asks this broker about all partitions of which it has a replica."""
    with flowstone.Cluster(2) as cluster:
        cluster.create_topic(TOPIC, partitions=4, replication_factor=2)
        for broker_id in ("1", "2"):
            java(
                "org.apache.kafka.tools.TransactionsCommand",
                *("--bootstrap-server", cluster.bootstrap, "find-hanging", "--broker-id", broker_id),
            )


def test_the_dump_tool_reads_every_file_of_transactions(java: Java, tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), **added_listener()) as app:
        with app.client() as client:
            assert client.create_topic(TOPIC) == 0
        producer = producer_of(address(app), "dumped")
        write(producer, 0, b"kept")
        producer.commit_transaction(TIMEOUT_S)
        write(producer, 0, b"dropped")
        producer.abort_transaction(TIMEOUT_S)
        write(producer, 0, b"open")
    files = {path.suffix: path for path in (tmp_path / f"{TOPIC}-0").iterdir() if path.stat().st_size}

    def dump(path: Path, *options: str) -> str:
        return java("org.apache.kafka.tools.DumpLogSegments", *options, "--files", str(path))

    log = dump(files[".log"], "--print-data-log")
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: 0", log) == ["COMMIT", "ABORT"]
    assert log.count("isTransactional: true isControl: false") == 3
    aborted = dump(files[".txnindex"])
    assert re.search(r"version: 0 producerId: \d+ firstOffset: 2 lastOffset: 3 lastStableOffset: 4", aborted)
    snapshot = dump(files[".snapshot"])
    assert re.search(r"coordinatorEpoch: 0 currentTxnFirstOffset: OptionalLong\[4\]", snapshot)
    (state,) = (each for each in tmp_path.glob("__transaction_state-*/*.log") if each.stat().st_size)
    decoded = dump(state, "--transaction-log-decoder")
    assert '"transactionalId":"dumped"' in decoded
    statuses = re.findall(r'"transactionStatus":(\d)', decoded)
    assert statuses == list("0" + "124" + "135" + "1")  # Empty, a commit, an abort, and Ongoing


def test_the_transaction_version_changes_while_a_transactional_producer_works(java: Java) -> None:
    with flowstone.Broker() as broker:
        broker.create_topic(TOPIC)

        def features(*arguments: str) -> str:
            return java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap, *arguments)

        def level() -> str:
            (line,) = (each for each in features("describe").splitlines() if "transaction.version" in each)
            assert "SupportedMinVersion: 0" in line
            assert "SupportedMaxVersion: 2" in line
            found = re.search(r"FinalizedVersionLevel: (\d)", line)
            assert found is not None
            return found[1]

        producer = producer_of(broker.bootstrap, "upgraded")
        assert level() == "2"
        for number, (change, wanted) in enumerate(
            [("downgrade", "1"), ("downgrade", "0"), ("upgrade", "1"), ("upgrade", "2"), ("downgrade", "0")]
        ):
            write(producer, 0, b"%d" % number)
            features(change, "--feature", f"transaction.version={wanted}")
            producer.commit_transaction(TIMEOUT_S)
            write(producer, 0, b"aborted")
            producer.abort_transaction(TIMEOUT_S)
        assert level() == "0"
        table = flowstone.read(TOPIC, columns=["value"], read_committed=True, bootstrap=broker.bootstrap)
        assert table["value"].to_pylist() == [b"%d" % number for number in range(5)]
