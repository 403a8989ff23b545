"""What read_committed readers see of a branch, and of a topic that was backed up and restored, amid transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowstone
from flowstone.wire.record_batch import decode_records, parse_header
from tests.support.transactions import TransactionClient, eventually
from tests.support.wire_client import Client, whole_batches
from tests.unit.cli.conftest import Run
from tests.unit.transactions.history import LABEL_BYTES, History, alter, delete_records
from tests.unit.transactions.states import produce_to

PAUSE_S = 0.02  # so that a time lies between the records before and after it
VALUE_BYTES = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(http=True, settings={"log.cleaner.backoff.ms": 100}) as broker:
        yield broker


@pytest.fixture
def client(broker: flowstone.Broker) -> Iterator[Client]:
    host, _, port = broker.bootstrap.rpartition(":")
    with Client((host, int(port))) as connected:
        yield connected


@pytest.fixture
def history(client: Client, request: pytest.FixtureRequest) -> History:
    """A history with open transactions."""
    topic = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(topic) == 0
    TransactionClient(client).begin()
    made = History(client, topic, value_bytes=VALUE_BYTES)
    made.run(80)
    for number in range(2):
        made.write(number)
    return made


def decided(history: History) -> list[bytes]:
    """The labels of all records that are committed by now, also behind the beginning of an open transaction."""
    return [each.label for each in history.written if history.is_committed(each)]


def goes_on(history: History, topic: str) -> bool:
    """Write another transaction to a copy of the topic; return whether it is seen there."""
    producer = TransactionClient(history.client, f"{topic}-own")
    producer.begin()
    assert produce_to(producer, 12, b"label-of" + bytes(VALUE_BYTES), topic=topic).error_code == 0
    assert producer.end(commit=True).error_code == 0
    producer.wait_for_state("CompleteCommit")
    return history.seen(topic)[-1] == b"label-of"


def test_a_branch_as_of_now_shows_what_was_committed(broker: flowstone.Broker, history: History, run: Run) -> None:
    branch, expected = f"{history.topic}-now", decided(history)
    made = run("branch", history.topic, branch, "--bootstrap", broker.bootstrap)
    assert made.returncode == 0, made.stderr
    history.end_all(commit=True)
    history.run(30)
    assert history.seen(branch) == expected
    assert goes_on(history, branch)
    history.end_all(commit=True)
    history.check()


def test_a_branch_at_a_time_within_transactions_shows_what_was_committed_then(
    broker: flowstone.Broker, history: History, run: Run
) -> None:
    expected = {}
    for number in range(4):
        time.sleep(PAUSE_S)
        expected[time.time_ns() // 1_000_000] = (f"{history.topic}-{number}", decided(history))
        time.sleep(PAUSE_S)
        history.run(30)
        if number == 2:
            history.end_all(commit=True)
    for time_ms, (branch, labels) in expected.items():
        made = run("branch", f"{history.topic}@{time_ms}", branch, "--bootstrap", broker.bootstrap)
        assert made.returncode == 0, made.stderr
        assert history.seen(branch) == labels
        assert goes_on(history, branch)


def test_a_topic_that_was_backed_up_amid_transactions_shows_what_was_committed(
    broker: flowstone.Broker, history: History, run: Run, tmp_path: Path
) -> None:
    restored, expected = f"{history.topic}-restored", decided(history)
    backup = tmp_path / "backup"
    stored = run("backup", history.topic, "--to", backup, "--bootstrap", broker.bootstrap)
    assert stored.returncode == 0, stored.stderr
    history.run(30)
    done = run("restore", history.topic, "--from", backup, "--as", restored, "--bootstrap", broker.bootstrap)
    assert done.returncode == 0, done.stderr
    assert history.seen(restored) == expected
    assert goes_on(history, restored)


def test_a_branch_of_a_log_that_begins_within_a_transaction(
    broker: flowstone.Broker, history: History, run: Run
) -> None:
    aborted = next(each for each in history.written if history.is_aborted(each) and each.offset > 5)
    start = delete_records(history.client, history.topic, aborted.offset)
    branch = f"{history.topic}-later"
    expected = [each.label for each in history.written if history.is_committed(each) and each.offset >= start]
    assert run("branch", history.topic, branch, "--bootstrap", broker.bootstrap).returncode == 0
    assert history.seen(branch, start) == expected


def test_compaction_leaves_the_record_that_was_committed_last(
    broker: flowstone.Broker, client: Client, request: pytest.FixtureRequest
) -> None:
    """All records have one key, and those of the transactions that began last are aborted."""
    topic = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(topic, cleanup_policy="compact", min_cleanable_dirty_ratio="0.0") == 0
    TransactionClient(client).begin()
    history = History(client, topic, value_bytes=VALUE_BYTES)
    history.run(100)
    history.end_all(commit=True)
    for number in range(2):
        history.write(number)
    history.end_all(commit=False)
    last = decided(history)[-1]
    alter(client, topic, segment_ms="1")
    time.sleep(PAUSE_S)
    history.write(0)  # begins a segment, and is open
    eventually(lambda: len(uncommitted(client, topic)) <= 2)
    assert history.seen() == [last]
    assert uncommitted(client, topic) == [last, history.written[-1].label]
    history.end_all(commit=True)
    assert history.seen() == [last, history.written[-1].label]


def uncommitted(client: Client, topic: str) -> list[bytes]:
    """The labels of all records of a topic."""
    labels, offset = [], 0
    while batches := list(whole_batches(bytes(client.fetch(topic, offset, max_bytes=1 << 22).records))):
        for batch in batches:
            if not parse_header(batch).is_control:
                labels += [(record.value or b"")[:LABEL_BYTES] for record in decode_records(batch)]
            offset = parse_header(batch).next_offset
    return labels
