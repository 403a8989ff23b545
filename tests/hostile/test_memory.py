"""No single means makes a broker take more than 600 MB: each test pushes one of them as far as it goes.

The broker is a process of its own with the default limits, and its resident memory is read at its peak. The means that
take longer than a few seconds run if FLOWSTONE_MEMORY_LONG is set.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.hostile import churn
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import Closed, batch_of, fetch_request, frame, framed, produce_request

MIB = 1 << 20
RSS_BYTES_MAX = 600 * MIB
SESSION_MS = 30_000
NEVER_MS = 2**31 - 1
long_test = pytest.mark.skipif("FLOWSTONE_MEMORY_LONG" not in os.environ, reason="long: FLOWSTONE_MEMORY_LONG=1")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
    with BrokerProcess(tmp_path / "data", settings=settings) as running:
        with running.connect() as client:
            churn.begin(client)
        running.forget_peak()
        before = running.rss_bytes()
        yield running
        assert running.is_running
        assert running.faults() == []
        peak = running.peak_bytes()
        print(
            f"{before / MIB:.0f} MiB at first, {peak / MIB:.0f} at the peak, {running.rss_bytes() / MIB:.0f} at the end"
        )
        assert peak < RSS_BYTES_MAX


def join_request(group_id: str, metadata: bytes, **more: Any) -> m.JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "protocol_type": "consumer",
        "protocols": [m.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    }
    return m.JoinGroupRequest(**values | more)


def test_members_with_large_metadata(broker: BrokerProcess) -> None:
    """Groups with one member of 5 MB each took as much as they came, and kept half of it even after they had left."""
    codes, members = [], []
    with broker.connect(timeout_s=60) as client:
        for number in range(90):
            joined = client.ask(3, join_request(f"g-{number}", bytes([number]) * (5 * MIB + number * 1000)))
            codes.append(joined.error_code)
            if joined.error_code == ErrorCode.NONE:
                members.append((f"g-{number}", joined.member_id))
        assert 30 < codes.count(ErrorCode.NONE) < 60
        assert set(codes) == {ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED}
        churn.new_groups(client)  # small groups are served all the same
        for group_id, member_id in members:
            assert client.ask(2, m.LeaveGroupRequest(group_id=group_id, member_id=member_id)).error_code == 0
        churn.new_groups(client)
    assert broker.rss_bytes() < 120 * MIB


@long_test
def test_joins_that_wait_with_a_hundred_thousand_protocols_each(broker: BrokerProcess) -> None:
    protocols = [m.JoinGroupRequestProtocol(name=str(number), metadata=b"x") for number in range(99_999)]
    codes = []
    with broker.connect(timeout_s=60) as client:
        for number in range(10):
            codes += [client.ask(3, join_request(f"g-{number}", b"", protocols=protocols)).error_code]
    assert codes[-1] != ErrorCode.NONE


def test_offsets_with_long_metadata(broker: BrokerProcess) -> None:
    refused = False
    with broker.connect(timeout_s=60) as client:
        assert client.create_topic("wide", partitions=2000) == 0
        for number in range(60):
            offsets = [
                m.OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="x" * 4000)
                for index in range(2000)
            ]
            topics = [m.OffsetCommitRequestTopic(name="wide", partitions=offsets)]
            answer = client.ask(8, m.OffsetCommitRequest(group_id=f"g-{number}", topics=topics))
            refused |= answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert refused
        churn.committed_groups(client)


@long_test
def test_group_ids_of_32_kib(broker: BrokerProcess) -> None:
    offset = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [m.OffsetCommitRequestTopic(name=churn.LASTING_TOPIC, partitions=[offset])]
    with broker.connect(timeout_s=60) as client:
        for number in range(6000):
            group_id = f"{number:05}" + "\N{LATIN SMALL LETTER A}" * 32_000
            client.send(frame(8, m.OffsetCommitRequest(group_id=group_id, topics=topics)))
            client.receive()


def test_member_ids_that_nobody_uses(broker: BrokerProcess) -> None:
    with broker.connect(timeout_s=60) as client:
        for _ in range(100):
            churn._join(client, [f"pending-{time.monotonic_ns()}-{each}" for each in range(200)], client_version=5)


def test_requests_that_are_begun_and_not_finished(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(broker.connect())
            client.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError, Closed):
                client.send(struct.pack(">i", 90 * MIB) + bytes(20 * MIB))


def test_long_answers_that_nobody_takes(broker: BrokerProcess) -> None:
    topics = [
        m.CreateTopicsRequestTopic(name=f"{'t' * 200}-{n}", num_partitions=1, replication_factor=1) for n in range(2000)
    ]
    with broker.connect(timeout_s=60) as client:
        client.ask(5, m.CreateTopicsRequest(topics=topics, timeout_ms=30_000))
    ask_all = frame(9, m.MetadataRequest(topics=None))
    unread(broker, lambda _: ask_all * 300, connections=40)


def test_settings_that_nobody_reads(broker: BrokerProcess) -> None:
    resources = [
        m.DescribeConfigsRequestResource(resource_type=2, resource_name=churn.LASTING_TOPIC, configuration_keys=None)
    ]
    asked = m.DescribeConfigsRequest(resources=resources * 100, include_synonyms=True, include_documentation=True)
    unread(broker, lambda _: frame(4, asked) * 300, connections=40)


def unread(broker: BrokerProcess, requests: Callable[[int], bytes], connections: int) -> None:
    """Send requests on many connections and read no answer, for a few seconds."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(connections)]
        for number, client in enumerate(clients):
            client.socket.settimeout(0.05)
            with contextlib.suppress(TimeoutError, Closed):
                client.send(requests(number))
        time.sleep(3)


def test_fetch_sessions_with_names_of_32_kib(broker: BrokerProcess) -> None:
    partition = m.FetchRequestPartition(partition=0, partition_max_bytes=1)
    with broker.connect(timeout_s=60) as client:
        for number in range(60):
            topics = [
                m.FetchRequestTopic(topic=f"{number}-{n}-" + "x" * 32_000, partitions=[partition]) for n in range(250)
            ]
            client.send(frame(11, m.FetchRequest(session_id=0, session_epoch=0, topics=topics)))
            client.receive()


def test_parked_fetches_of_many_partitions(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(broker.connect(timeout_s=60))
        assert owner.create_topic("wide", partitions=2000) == 0
        partitions = [m.FetchRequestPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(2000)]
        topics = [m.FetchRequestTopic(topic="wide", partitions=partitions)]
        fetch = m.FetchRequest(max_wait_ms=NEVER_MS, min_bytes=NEVER_MS, session_epoch=-1, topics=topics)
        request = frame(11, fetch)
        for _ in range(10):
            client = stack.enter_context(broker.connect())
            client.socket.settimeout(0.5)
            with contextlib.suppress(TimeoutError, Closed):
                client.send(request * 60)
        time.sleep(3)


def test_produces_with_timeouts_that_no_other_has(broker: BrokerProcess) -> None:
    batch = batch_of(b"x")
    with broker.connect(timeout_s=60) as client:
        for first in range(0, 20_000, 500):
            requests = []
            for number in range(first, first + 500):
                produce = produce_request(churn.LASTING_TOPIC, batch)
                produce.timeout_ms = 100_000 + number * 50_000
                requests.append(frame(9, produce))
            client.send(b"".join(requests))
            for _ in requests:
                client.receive()
    assert broker.rss_bytes() < 100 * MIB


def test_connections_that_keep_what_was_sent_while_they_wait(broker: BrokerProcess) -> None:
    """Requests behind one that is being worked on are kept, up to the size of the receive buffer, per connection."""
    with contextlib.ExitStack() as stack:
        wait = frame(11, fetch_request(churn.LASTING_TOPIC, 0, max_wait_ms=NEVER_MS, min_bytes=NEVER_MS))
        for _ in range(800):
            client = stack.enter_context(broker.connect())
            client.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError, Closed):
                client.send(wait * 1001 + framed(bytes(250_000)))


def test_client_names_of_32_kib_on_many_connections(broker: BrokerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(2000):
            client = stack.enter_context(broker.connect())
            asked = m.ApiVersionsRequest(client_software_name=f"{number}" + "x" * 32_000, client_software_version="1")
            client.ask(3, asked)


@long_test
def test_many_of_the_largest_requests_at_once(broker: BrokerProcess) -> None:
    topics = [
        m.CreateTopicsRequestTopic(name=f"{'t' * 60}-{n}", num_partitions=0, replication_factor=1)
        for n in range(99_000)
    ]
    request = frame(5, m.CreateTopicsRequest(topics=topics, timeout_ms=60_000))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect(timeout_s=120)) for _ in range(12)]
        threads = [threading.Thread(target=client.send, args=(request,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            with contextlib.suppress(Closed):  # what arrives too slowly while others wait for memory is cut off
                client.receive()


@long_test
def test_as_many_partitions_as_are_allowed(broker: BrokerProcess) -> None:
    with broker.connect(timeout_s=120) as client:
        for first in range(0, 100_000, 1_000):
            topics = [
                m.CreateTopicsRequestTopic(name=f"t-{n}", num_partitions=1, replication_factor=1)
                for n in range(first, first + 1_000)
            ]
            client.ask(5, m.CreateTopicsRequest(topics=topics, timeout_ms=60_000))


@long_test
def test_as_many_groups_as_are_allowed(broker: BrokerProcess) -> None:
    with broker.connect(timeout_s=120) as client:
        for _ in range(10_000):
            codes = {answer.error_code for answer in churn._join(client, churn._names("many"))}
            if codes == {ErrorCode.GROUP_MAX_SIZE_REACHED}:
                break
        else:
            raise AssertionError("never refused")


@long_test
def test_as_many_offsets_as_are_allowed(broker: BrokerProcess) -> None:
    offsets = [m.OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(2000)]
    topics = [m.OffsetCommitRequestTopic(name="wide", partitions=offsets)]
    with broker.connect(timeout_s=120) as client:
        assert client.create_topic("wide", partitions=2000) == 0
        for number in range(1_000):
            answer = client.ask(8, m.OffsetCommitRequest(group_id=f"g-{number}", topics=topics))
            if answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
                break
        else:
            raise AssertionError("never refused")
