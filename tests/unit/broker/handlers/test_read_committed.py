"""Fetch with isolation level read_committed, over logs with real transactions and end markers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import NotCached
from flowstone.wire.record_batch import decode_records, parse_header
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.wire_client import Client, fetch_request, whole_batches

ONE, TWO, THREE = 9001, 9002, 9003
READ_COMMITTED = 1


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("read-committed")), idle_poll_us="0") as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        yield connected


@pytest.fixture
def topic(app: RunningApp, client: Client, request: pytest.FixtureRequest) -> TransactionalTopic:
    name = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(name) == 0
    return TransactionalTopic(app, name)


def committed(client: Client, topic: str, offset: int = 0) -> list[bytes]:
    """The values that a read_committed consumer shows, filtered as Kafka's consumer filters."""
    values: list[bytes] = []
    while True:
        answer = client.fetch(topic, offset, isolation_level=READ_COMMITTED)
        assert answer.error_code == 0
        batches = list(whole_batches(bytes(answer.records)))
        if not batches:
            return values
        pending = [(each.first_offset, each.producer_id) for each in answer.aborted_transactions]
        assert pending == sorted(pending), "librdkafka and franz-go rely on the order"
        aborting = set[int]()
        for batch in batches:
            header = parse_header(batch)
            while pending and pending[0][0] <= header.last_offset:
                aborting.add(pending.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                values += [record.value or b"" for record in decode_records(batch)]
            offset = header.next_offset


def test_a_read_committed_reader_sees_committed_records_only_and_in_order(
    client: Client, topic: TransactionalTopic
) -> None:
    topic.write(ONE, b"a1")
    topic.write(TWO, b"c1")
    topic.write_plain(b"p1")
    topic.write(ONE, b"a2")
    topic.end(ONE, commits=False)
    topic.write(ONE, b"c2")
    topic.end(TWO, commits=True)
    topic.end(ONE, commits=True)
    topic.write(THREE, b"open")
    topic.write_plain(b"after")
    assert committed(client, topic.topic) == [b"c1", b"p1", b"c2"]
    topic.end(THREE, commits=True)
    assert committed(client, topic.topic) == [b"c1", b"p1", b"c2", b"open", b"after"]


def test_aborted_transactions_are_sorted_by_where_they_began_not_where_they_ended(
    client: Client, topic: TransactionalTopic
) -> None:
    for producer_id in (ONE, TWO, THREE):
        topic.write(producer_id, b"a")
    for producer_id in (THREE, ONE, TWO):
        topic.end(producer_id, commits=False)
    answer = client.fetch(topic.topic, 0, isolation_level=READ_COMMITTED)
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [
        (ONE, 0),
        (TWO, 1),
        (THREE, 2),
    ]


def test_an_uncommitted_reader_is_told_of_no_aborted_transactions(client: Client, topic: TransactionalTopic) -> None:
    topic.write(ONE, b"a")
    topic.end(ONE, commits=False)
    answer = client.fetch(topic.topic, 0)
    assert (answer.aborted_transactions, len(answer.records) > 0) == (None, True)


def test_a_fetch_without_records_lists_no_aborted_transactions(client: Client, topic: TransactionalTopic) -> None:
    topic.write(ONE, b"a")
    topic.end(ONE, commits=False)
    answer = client.fetch(topic.topic, 2, isolation_level=READ_COMMITTED)
    assert (list(answer.aborted_transactions), len(answer.records)) == ([], 0)


def test_a_fetch_from_the_middle_of_an_aborted_transaction_lists_it(client: Client, topic: TransactionalTopic) -> None:
    topic.write(ONE, b"a1", b"a2", b"a3")
    topic.end(ONE, commits=False)
    answer = client.fetch(topic.topic, 2, isolation_level=READ_COMMITTED)
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [(ONE, 0)]
    assert committed(client, topic.topic, 2) == []


def test_a_fetch_lists_only_what_was_aborted_among_its_records(client: Client, topic: TransactionalTopic) -> None:
    """Else a reader of an old log would be told of all aborted transactions after it, in every answer."""
    for _ in range(40):
        topic.write(ONE, b"a" * 1000)
        topic.end(ONE, commits=False)
    answer = client.fetch(topic.topic, 0, isolation_level=READ_COMMITTED, max_bytes=2000)
    told = [each.first_offset for each in answer.aborted_transactions]
    end = parse_header(list(whole_batches(bytes(answer.records)))[-1]).next_offset
    assert told[: (end + 1) // 2] == list(range(0, end, 2))
    assert len(told) < 20


def test_an_answer_full_of_aborted_records_leads_past_them(client: Client, topic: TransactionalTopic) -> None:
    """librdkafka once took an answer without a visible record for an empty one, and asked for the same offset again."""
    topic.write(ONE, *[b"a" * 1000] * 20)
    topic.end(ONE, commits=False)
    topic.write_plain(b"after")
    answer = client.fetch(topic.topic, 0, isolation_level=READ_COMMITTED, max_bytes=3000)
    assert len(answer.records) >= 1000
    assert committed(client, topic.topic) == [b"after"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_parked_read_committed_fetch_is_answered_when_the_marker_is_written(
    app: RunningApp, client: Client, topic: TransactionalTopic, commits: bool
) -> None:
    topic.write(ONE, b"t")
    with app.client() as reader:
        request = fetch_request(topic.topic, 0, isolation_level=READ_COMMITTED, max_wait_ms=9000)
        answered = threading.Event()
        found: list[int] = []

        def read() -> None:
            found.append(len(reader.ask(11, request).responses[0].partitions[0].records))
            answered.set()

        reading = threading.Thread(target=read)
        reading.start()
        while not app.call(lambda: bool(app.app.services.waiting.fetches)):
            pass
        topic.write(ONE, b"more")
        client.fetch(topic.topic, 0)
        assert not answered.is_set()
        topic.end(ONE, commits=commits)
        assert answered.wait(5)
        reading.join()
    assert found[0] > 0


def test_an_index_of_aborted_transactions_that_is_not_cached_is_read_by_a_worker(
    client: Client, topic: TransactionalTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.write(ONE, b"a")
    topic.end(ONE, commits=False)
    found: Callable[..., object] = PartitionLog.aborted_transactions
    missing = [True]

    def not_cached_once(log: PartitionLog, *args: object) -> object:
        if missing:
            missing.clear()
            raise NotCached(log.segments.active.log.get(), 0, 10)
        return found(log, *args)

    monkeypatch.setattr(PartitionLog, "aborted_transactions", not_cached_once)
    answer = client.fetch(topic.topic, 0, isolation_level=READ_COMMITTED)
    assert not missing
    assert [each.first_offset for each in answer.aborted_transactions] == [0]
