"""Produce over a real socket: what is said of refused records, large requests, and batches that a worker opens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from flowstone.broker.handlers.produce import RECORD_ERRORS_TOLD_MAX
from flowstone.broker.requests import batch_preparation
from flowstone.errors import ErrorCode
from flowstone.log.partition import validation
from flowstone.log.partition.validation import INLINE_PAYLOAD_BYTES_MAX, INLINE_STORED_BYTES_MAX
from flowstone.wire.compression import Codec
from flowstone.wire.messages import (
    ApiVersionsRequest,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header
from tests.support.loop_probe import LoopProbe
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, batch_of, frame, whole_batches

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
LOOP_HOLD_S_MAX = 0.05
VERSION = 9


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("produce"))) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        yield connected


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(name, partitions=3) == 0
    return name


def request_of(topic: str, batches: list[tuple[int, bytes]], acks: int = -1) -> ProduceRequest:
    """A request of these batches, each for a partition."""
    partitions = [ProduceRequestPartition(index=index, records=batch) for index, batch in batches]
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[ProduceRequestTopic(name=topic, partition_data=partitions)]
    )


def results(response: ProduceResponse) -> list[Any]:
    return [result for topic in response.responses for result in topic.partition_responses]


def large_batch(codec: Codec = Codec.GZIP, seed: int = 1) -> bytes:
    """A batch that is too large for the loop to open."""
    value = Random(seed).randbytes(2 * INLINE_STORED_BYTES_MAX)
    return build_batch([Record(0, int(time.time() * 1000), b"k", value)], codec=codec)


def values(client: Client, topic: str) -> list[bytes]:
    """Of all records of the first partition."""
    found: list[bytes] = []
    offset, end = 0, client.end_offset(topic)
    while offset < end:
        data = bytes(client.fetch(topic, offset).records)
        for batch in whole_batches(data):
            found += [record.value or b"" for record in decode_records(batch)]
            offset = parse_header(batch).next_offset
    return found


# Refused records


@pytest.mark.parametrize("codec", list(Codec))
def test_records_without_a_key_are_named_and_the_log_start_is_told(client: Client, codec: Codec) -> None:
    topic = f"keyless-{codec.name.lower()}"
    assert client.create_topic(topic, cleanup_policy="compact,delete") == 0
    now = int(time.time() * 1000)
    assert client.produce(topic, build_batch([Record(at, now, b"k", b"v") for at in range(4)])).error_code == 0
    partition = DeleteRecordsRequestPartition(partition_index=0, offset=3)
    client.ask(2, DeleteRecordsRequest(topics=[DeleteRecordsRequestTopic(name=topic, partitions=[partition])]))

    keys = [b"a", None, b"c", None]
    records = build_batch([Record(at, now, key, b"v") for at, key in enumerate(keys)], codec=codec)
    answer = client.produce(topic, records)

    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (ErrorCode.INVALID_RECORD, -1, 3)
    assert [each.batch_index for each in answer.record_errors] == [1, 3]
    assert "key" in answer.record_errors[0].batch_index_error_message
    assert "cleanup.policy" in answer.error_message


def test_the_invalid_records_of_many_batches_are_named_up_to_a_limit(client: Client) -> None:
    """Each of them would be an element of the response: of a request of 80 MB there may be ten million."""
    assert client.create_topic("keyed", cleanup_policy="compact") == 0
    now, listed = int(time.time() * 1000), 100
    batch = build_batch([Record(index, now, None, b"x") for index in range(listed)])
    count = RECORD_ERRORS_TOLD_MAX // listed
    answers = (
        client.ask(VERSION, request_of("keyed", [(0, batch)] * 3 * count, acks=1)).responses[0].partition_responses
    )
    assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_RECORD}
    assert [len(answer.record_errors) for answer in answers] == [listed] * count + [0] * 2 * count


def test_records_out_of_the_range_of_timestamps_are_named_with_the_setting(client: Client, topic: str) -> None:
    now = int(time.time() * 1000)
    times = [now, now + 2 * 3_600_000, now]
    answer = client.produce(topic, build_batch([Record(at, each, b"k", b"v") for at, each in enumerate(times)]))
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.INVALID_TIMESTAMP, 0)
    assert [each.batch_index for each in answer.record_errors] == [1]
    assert "message.timestamp.after.max.ms allows 3600000" in answer.record_errors[0].batch_index_error_message


def test_a_batch_refused_as_a_whole_names_no_record(client: Client, topic: str) -> None:
    answer = client.produce(topic, batch_of(b"v")[:-1] + b"!")
    assert (answer.error_code, answer.record_errors) == (ErrorCode.CORRUPT_MESSAGE, [])


# Batches that a worker opens


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_large_compressed_batch_is_stored_as_it_came(client: Client, topic: str, codec: Codec, acks: int) -> None:
    sent = large_batch(codec)
    answer = client.produce(topic, sent, acks)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert client.produce(topic, batch_of(b"so that the first one is committed")).base_offset == 1
    stored = bytes(client.fetch(topic, 0).records)
    assert stored[61 : len(sent)] == sent[61:]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_large_compressed_batch_that_lies_is_refused(client: Client, topic: str, codec: Codec) -> None:
    keyless = build_batch([Record(0, -5, None, bytes(4 * INLINE_PAYLOAD_BYTES_MAX))], codec=codec)
    damaged = bytearray(large_batch(codec))
    damaged[-9] ^= 1
    assert client.produce(topic, bytes(damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert client.create_topic(f"{topic}-compacted", cleanup_policy="compact") == 0
    answer = client.produce(f"{topic}-compacted", keyless)
    assert (answer.error_code, answer.record_errors[0].batch_index) == (ErrorCode.INVALID_RECORD, 0)


def test_batches_keep_their_order_whether_a_worker_opens_them_or_not(client: Client, topic: str) -> None:
    """In one request and from one request of a connection to the next, all sent at once."""
    now = int(time.time() * 1000)
    batches, expected = [], []
    for number in range(30):
        value = b"%d" % number if number % 3 else Random(number).randbytes(INLINE_STORED_BYTES_MAX)
        batches.append(build_batch([Record(0, now, b"k", value)], codec=Codec.LZ4 if number % 2 else Codec.GZIP))
        expected.append(value)
    frames = [frame(VERSION, request_of(topic, [(0, each) for each in batches[at : at + 3]])) for at in range(0, 30, 3)]
    client.send(b"".join(frames))
    for _ in frames:
        client.receive()
    assert values(client, topic) == expected


def test_what_waits_to_be_opened_is_limited(
    app: RunningApp, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request above the limit is taken if it is alone, and refused while another one waits."""
    is_opened, goes_on = threading.Event(), threading.Event()
    prepare = validation.prepare_batch

    def wait(*arguments: Any, **more: Any) -> Any:
        is_opened.set()
        goes_on.wait(10)
        return prepare(*arguments, **more)

    monkeypatch.setattr(batch_preparation, "QUEUED_BYTES_MAX", INLINE_STORED_BYTES_MAX)
    monkeypatch.setattr(batch_preparation, "prepare_batch", wait)
    batch = large_batch()
    with app.client() as first, ThreadPoolExecutor() as threads:
        waiting = threads.submit(first.produce, topic, batch, partition=1)
        assert is_opened.wait(10)
        answers = results(client.ask(VERSION, request_of(topic, [(0, batch_of(b"v")), (2, batch)])))
        assert [each.error_code for each in answers] == [0, ErrorCode.REQUEST_TIMED_OUT]
        goes_on.set()
        assert waiting.result(10).error_code == 0
    assert client.produce(topic, batch).error_code == 0


def test_a_connection_with_many_batches_to_open_leaves_a_worker_to_others(
    app: RunningApp, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's batch is opened while most of the many still wait."""
    opened: list[int] = []
    yield_to_loop = threading.Event()
    prepare = validation.prepare_batch

    def count(batch: bytes, *rest: Any, **more: Any) -> Any:
        if parse_header(batch).record_count == 1:
            opened.append(1)
            yield_to_loop.wait(10)
        return prepare(batch, *rest, **more)

    monkeypatch.setattr(batch_preparation, "prepare_batch", count)
    now = int(time.time() * 1000)
    others = build_batch(
        [Record(at, now, b"k", Random(1).randbytes(INLINE_STORED_BYTES_MAX)) for at in range(2)], codec=Codec.GZIP
    )
    with app.client() as greedy, app.client() as other:
        greedy.send(frame(VERSION, request_of(topic, [(at % 3, large_batch()) for at in range(40)])))
        assert other.produce(topic, batch_of(b"v"), partition=2).error_code == 0
        assert other.produce(topic, others, partition=2).error_code == 0
        assert len(opened) <= 1
        yield_to_loop.set()
        greedy.receive()
    assert len(opened) == 40


def test_batches_that_take_long_to_open_do_not_hold_up_others(
    app: RunningApp, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many connections send such batches at once."""
    may_open, is_opening = threading.Event(), threading.Event()
    prepare = validation.prepare_batch

    def wait(batch: bytes, *rest: Any, max_bytes: int = validation.DECOMPRESSED_BYTES_MAX) -> Any:
        if max_bytes == validation.DECOMPRESSED_BYTES_MAX:
            is_opening.set()
            may_open.wait(10)
        return prepare(batch, *rest, max_bytes=max_bytes)

    monkeypatch.setattr(batch_preparation, "prepare_batch", wait)
    value = bytes(batch_preparation.QUICK_PAYLOAD_BYTES_MAX)
    slow = build_batch([Record(0, int(time.time() * 1000), b"k", value)], codec=Codec.ZSTD)
    greedy = [app.client() for _ in range(5)]
    for connection in greedy:
        connection.send(frame(VERSION, request_of(topic, [(1, slow)])))
    assert is_opening.wait(10)
    with app.client() as other:
        assert other.produce(topic, large_batch()).error_code == 0
    may_open.set()
    for connection in greedy:
        connection.receive()
        connection.close()


# Requests of many batches


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("acks", [1, -1])
def test_a_request_of_many_batches_does_not_hold_the_loop(app: RunningApp, topic: str, acks: int, codec: Codec) -> None:
    count = 15_000
    batch = build_batch([Record(0, int(time.time() * 1000), None, b"x" * 40)], codec=codec)
    data = frame(VERSION, request_of(topic, [(at % 3, batch) for at in range(count)], acks))
    with app.client() as client, LoopProbe(app) as probe:
        client.socket.settimeout(60)
        client.send(data)
        client.receive()
        client.ask(0, ApiVersionsRequest())
    with app.client() as client:
        assert client.produce(topic, batch_of(b"one more")).base_offset == count // 3
    assert probe.longest_s < LOOP_HOLD_S_MAX


def test_every_batch_of_a_large_request_has_its_own_answer(client: Client, topic: str) -> None:
    good, bad = batch_of(b"v"), batch_of(b"v")[:-1] + b"!"
    batches = [(at % 3, good if at % 2 else bad) for at in range(600)]
    answers = results(client.ask(VERSION, request_of(topic, [*batches, (7, good)])))
    codes = [ErrorCode(each.error_code) for each in answers]
    assert codes[:-1] == [ErrorCode.NONE if at % 2 else ErrorCode.CORRUPT_MESSAGE for at in range(600)]
    assert codes[-1] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.index for each in answers] == [index for index, _ in [*batches, (7, good)]]
    offsets = [each.base_offset for each in answers if each.index == 0 and not each.error_code]
    assert offsets == list(range(100))


def test_a_large_request_without_acknowledgement_is_appended_before_the_next_one(client: Client, topic: str) -> None:
    first = [batch_of(b"%d" % number) for number in range(500)]
    client.send(frame(VERSION, request_of(topic, [(0, each) for each in first], acks=0)))
    assert client.produce(topic, batch_of(b"last")).base_offset == 500
    assert values(client, topic) == [b"%d" % number for number in range(500)] + [b"last"]


def test_topics_of_a_large_request_are_answered_in_order(client: Client, topic: str) -> None:
    partition = ProduceRequestPartition(index=0, records=batch_of(b"v"))
    names = [topic, "nowhere", topic] * 150
    topics = [ProduceRequestTopic(name=name, partition_data=[partition]) for name in names]
    response = client.ask(VERSION, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
    assert [each.name for each in response.responses] == names


def test_large_batches_of_several_clients_for_one_partition_are_stored_whole(app: RunningApp) -> None:
    """They are written in pieces."""
    records = [[Record(at, 1, None, Random(8 * seed + at).randbytes(1 << 20)) for at in range(8)] for seed in range(6)]
    batches = [build_batch(each) for each in records]

    def send(batch: bytes) -> None:
        with app.client() as client:
            for _ in range(3):
                assert client.produce("pieces", batch).error_code == ErrorCode.NONE

    with app.client() as client:
        assert client.create_topic("pieces", max_message_bytes=str(16 << 20)) == 0
        with ThreadPoolExecutor(len(batches)) as clients:
            list(clients.map(send, batches))
        found = [bytes(client.fetch("pieces", 8 * at).records) for at in range(18)]
    assert sorted(each[21:] for each in found) == sorted(each[21:] for each in batches * 3)
