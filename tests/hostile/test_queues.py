"""Clients that ask for more than they take, or promise more than they send: every queue has an end."""

from __future__ import annotations

import contextlib
import struct
import time

import pytest

from flowstone.broker.fetching.fetch_sessions import CACHED_PARTITIONS_MAX, SESSION_PARTITIONS_MAX
from flowstone.errors import ErrorCode
from flowstone.wire.codec import response_decoder
from flowstone.wire.frames import parse_response_header
from flowstone.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    MetadataRequest,
)
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import Closed, batch_of, fetch_request, frame, produce_request

MIB = 1 << 20
ENDLESS_MS = 2**31 - 1
PIPELINED = 5000


def test_thousands_of_requests_in_one_go_are_answered_in_order(broker, bystander):
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    with bystander(broker), broker.connect() as client:
        client.send(b"".join(frame(3, request, number) for number in range(PIPELINED)))
        for number in range(PIPELINED):
            assert parse_response_header(memoryview(client.receive()), 0, False)[0] == number


def test_a_topic_made_by_one_request_is_there_for_the_next_one_of_the_same_connection(broker):
    topic = CreateTopicsRequestTopic(name="made-and-used", num_partitions=1, replication_factor=1)
    create, use = CreateTopicsRequest(topics=[topic], timeout_ms=1000), produce_request("made-and-used", batch_of(b"x"))
    with broker.connect() as client:
        client.send(frame(2, create, 1) + frame(9, use, 2))
        client.receive()
        answer = memoryview(client.receive())
        _, at = parse_response_header(answer, 0, True)
        partition = response_decoder(0, 9)(answer, at).responses[0].partition_responses[0]
        assert partition.error_code == ErrorCode.NONE


def test_one_who_never_takes_his_fetched_megabytes_is_cut_off_and_costs_little_memory(start_broker, bystander):
    broker = start_broker(connection_frame_timeout_ms="1000")
    with broker.connect() as client:
        assert client.create_topic("large") == 0
        for _ in range(8):
            assert client.produce("large", batch_of(bytes(MIB - 1000))).error_code == 0
    before = broker.rss_bytes()
    broker.forget_peak()
    with bystander(broker), broker.connect() as greedy:
        greedy.send(frame(11, fetch_request("large", 0, max_bytes=8 * MIB)) * 300)
        eventually_cut_off(greedy, 4.0)
    growth = broker.peak_bytes() - before
    print(f"300 unread fetches of 8 MiB: {growth / MIB:.1f} MiB")
    assert growth < 32 * MIB


def eventually_cut_off(client, limit_s):
    """Waits until the broker has closed without reading: only sending tells."""
    deadline = time.monotonic() + limit_s
    with contextlib.suppress(Closed):
        while time.monotonic() < deadline:
            client.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                client.send(frame(0, MetadataRequest(topics=[])))
            time.sleep(0.05)
        raise AssertionError(f"still open after {limit_s} s")


UNREAD_BYTES_MAX = 8 * MIB


@pytest.fixture(scope="module")
def broker_of_many_topics(tmp_path_factory):
    settings = {
        "connection.frame.timeout.ms": "1000",
        "connection.max.queued.response.bytes": str(UNREAD_BYTES_MAX),
    }
    topics = [CreateTopicsRequestTopic(name=f"t-{n}", num_partitions=2, replication_factor=1) for n in range(2000)]
    with BrokerProcess(tmp_path_factory.mktemp("topics") / "data", settings=settings) as broker:
        with broker.connect() as client:
            client.ask(5, CreateTopicsRequest(topics=topics, timeout_ms=1000))
            client.ask(9, MetadataRequest(topics=None))
        yield broker
        assert broker.faults() == []


ALL_TOPICS = frame(9, MetadataRequest(topics=None))
ALL_SETTINGS = DescribeConfigsRequest(
    include_synonyms=True,
    include_documentation=True,
    resources=[DescribeConfigsRequestResource(resource_type=2, resource_name="t-0", configuration_keys=None)],
)
LONG_ANSWERS = {
    "topics": ALL_TOPICS,
    "topics behind fetches that wait": frame(11, fetch_request("t-0", 0, max_wait_ms=ENDLESS_MS)) + ALL_TOPICS,
    "settings": frame(4, ALL_SETTINGS),
}


@pytest.mark.parametrize("request_bytes", LONG_ANSWERS.values(), ids=LONG_ANSWERS)
def test_one_who_never_takes_long_answers_costs_no_more_than_the_limit(broker_of_many_topics, bystander, request_bytes):
    broker = broker_of_many_topics
    before = broker.rss_bytes()
    broker.forget_peak()
    with bystander(broker), broker.connect() as greedy:
        greedy.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError, Closed):
            greedy.send(request_bytes * 3000)
        time.sleep(1)  # as much as it can pile up until it is cut off
    growth = broker.peak_bytes() - before
    print(f"unread answers: {growth / MIB:.1f} MiB")
    assert growth < UNREAD_BYTES_MAX + 16 * MIB


def test_requests_that_promise_much_and_send_little_stay_within_the_limit_and_let_others_through(
    start_broker, bystander
):
    limit_bytes = 64 * MIB
    broker = start_broker(queued_max_request_bytes=str(limit_bytes))
    before = broker.rss_bytes()
    large = batch_of(bytes(900_000))
    with bystander(broker), contextlib.ExitStack() as stack:
        with broker.connect() as client:
            assert client.create_topic("large") == 0
        for _ in range(50):
            stack.enter_context(broker.connect()).send(struct.pack(">i", 60 * MIB) + bytes(1000))
        with broker.connect() as client:
            # Larger than what is received in one go, so it needs a buffer of which there is none left at first.
            started = time.monotonic()
            assert client.produce("large", large).error_code == 0
            took_s = time.monotonic() - started
        growth = broker.rss_bytes() - before
    print(f"50 requests of 60 MiB begun: {growth / MIB:.1f} MiB; a large produce waited {took_s:.1f} s")
    assert growth < limit_bytes + 16 * MIB
    assert took_s < 8


def test_fetches_that_wait_for_ever_cannot_keep_produces_out(start_broker, bystander):
    broker = start_broker(max_parked_requests="100")
    endless = frame(11, fetch_request("t", 0, max_wait_ms=ENDLESS_MS, min_bytes=ENDLESS_MS))
    with contextlib.ExitStack() as stack:
        with broker.connect() as client:
            assert client.create_topic("t") == 0
        for _ in range(5):
            stack.enter_context(broker.connect()).send(endless * 40)
        with bystander(broker), broker.connect() as client:
            started = time.monotonic()
            assert client.produce("t", batch_of(b"x")).error_code == 0
            # No place to wait is left: what there is comes at once.
            assert client.fetch("t", 1, max_wait_ms=5000).error_code == 0
            assert time.monotonic() - started < 1


def session_request(count, session_id=0, epoch=0, first=0):
    partitions = [FetchRequestPartition(partition=first + index, partition_max_bytes=1) for index in range(count)]
    topics = [FetchRequestTopic(topic="no-such-topic", partitions=partitions)]
    return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics)


def test_fetch_sessions_beyond_the_limit_are_not_kept_and_old_ones_go_on(start_broker, bystander):
    broker = start_broker(max_incremental_fetch_session_cache_slots="10")
    with broker.connect() as client:
        ids = [client.ask(11, session_request(1)).session_id for _ in range(50)]
        assert all(ids[:10])
        assert not any(ids[10:])
        for session_id in ids[:10]:
            answer = client.ask(11, FetchRequest(session_id=session_id, session_epoch=1))
            assert answer.error_code == ErrorCode.NONE
        assert client.ask(11, FetchRequest(session_id=12345, session_epoch=1)).error_code == (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        )


def test_a_fetch_session_that_grows_without_end_is_dropped(broker, bystander):
    step = SESSION_PARTITIONS_MAX // 2
    with bystander(broker), broker.connect() as client:
        session_id = client.ask(11, session_request(step)).session_id
        assert session_id
        assert client.ask(11, session_request(step, session_id, 1, step)).error_code == 0
        refused = client.ask(11, session_request(step, session_id, 2, 2 * step))
        assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        refused = client.ask(11, FetchRequest(session_id=session_id, session_epoch=3))
        assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_large_fetch_sessions_take_bounded_memory_together(start_broker):
    broker = start_broker()
    before = broker.rss_bytes()
    request = frame(11, session_request(SESSION_PARTITIONS_MAX))
    fitting = CACHED_PARTITIONS_MAX // SESSION_PARTITIONS_MAX
    ids = []
    with broker.connect() as client:
        for _ in range(fitting + 2):
            client.send(request)
            ids.append(struct.unpack_from(">iihi", client.receive())[3])
    assert [bool(each) for each in ids] == [True] * fitting + [False] * 2
    growth = broker.rss_bytes() - before
    print(f"{fitting} sessions of {SESSION_PARTITIONS_MAX} partitions: {growth / MIB:.1f} MiB")
    assert growth < 150 * MIB
