"""What is not sent yet is counted over all connections, and ends somewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.broker.network import unsent_bytes
from flowstone.broker.network.unsent_bytes import RESPONSE_SLICES_MAX, Unsent, UnsentTotal
from flowstone.errors import ErrorCode
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic, MetadataRequest
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of, frame

WAIT_S = 10.0


def test_bytes_and_slices_of_all_connections_are_counted_until_they_are_sent_or_dropped():
    total = UnsentTotal()
    first, second = Unsent(total), Unsent(total)
    file = SimulatedFiles().open("/log", create=True)
    first.add([b"12345", LogSlice(file, 0, 1000), memoryview(b"678")])
    second.add([bytearray(2)])
    assert (total.memory_bytes, total.slice_count) == (10, 1)
    first.change(-5, 0)
    first.change(0, -1)
    assert (total.memory_bytes, total.slice_count) == (5, 0)
    first.clear()
    assert (total.memory_bytes, total.slice_count) == (2, 0)


def test_an_answer_is_as_long_as_its_bytes_and_its_slices_of_files():
    file = SimulatedFiles().open("/log", create=True)
    assert Unsent(UnsentTotal()).add([b"12345", LogSlice(file, 0, 1000), memoryview(b"678")]) == 1008


def test_while_many_files_are_held_an_answer_gets_one_slice():
    total = UnsentTotal()
    assert total.response_slices_max == RESPONSE_SLICES_MAX
    total.slice_count = unsent_bytes.UNSENT_SLICES_MAX - 3
    assert total.response_slices_max == 3
    total.slice_count = unsent_bytes.UNSENT_SLICES_MAX + 100
    assert total.response_slices_max == 1


def test_too_much_is_more_than_the_limit():
    total = UnsentTotal()
    total.memory_bytes = unsent_bytes.UNSENT_BYTES_MAX
    assert not total.is_too_much
    total.memory_bytes += 1
    assert total.is_too_much


def test_a_connection_counts_its_own_bytes_and_slices():
    total = UnsentTotal()
    first, second = Unsent(total), Unsent(total)
    file = SimulatedFiles().open("/log", create=True)
    for each in (first, second):
        each.add([b"123", LogSlice(file, 0, 1000), LogSlice(file, 1000, 10)])
    first.change(-2, -1)
    assert (first.memory_bytes, first.slice_count) == (1, 1)
    assert (second.memory_bytes, second.slice_count) == (3, 2)
    first.clear()
    assert (first.memory_bytes, first.slice_count) == (0, 0)
    assert (total.memory_bytes, total.slice_count) == (3, 2)


def test_a_fetch_over_many_partitions_holds_so_many_files_at_most_and_a_session_gets_to_all_of_them(tmp_path: Path):
    count = RESPONSE_SLICES_MAX + 30
    with RunningApp(str(tmp_path)) as running, running.client() as client:
        client.create_topic("wide", count)
        for partition in range(count):
            assert client.produce("wide", batch_of(b"v"), partition=partition).error_code == 0
        wanted = [FetchRequestPartition(partition=index, partition_max_bytes=1 << 20) for index in range(count)]
        request = FetchRequest(
            max_bytes=1 << 30, session_epoch=0, topics=[FetchRequestTopic(topic="wide", partitions=wanted)]
        )
        first = client.ask(11, request)
        served = [each.partition_index for each in first.responses[0].partitions if each.records]
        assert len(served) == RESPONSE_SLICES_MAX
        assert len(first.responses[0].partitions) == count
        request = FetchRequest(max_bytes=1 << 30, session_id=first.session_id, session_epoch=1)
        second = client.ask(11, request)
        served += [each.partition_index for each in second.responses[0].partitions if each.records]
        assert set(served) == set(range(count))
        assert running.call(lambda: running.app.services.unsent.slice_count) == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_when_all_together_leave_too_much_nobody_adds_to_it_and_the_worst_are_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    limit = 4 << 20
    monkeypatch.setattr(unsent_bytes, "UNSENT_BYTES_MAX", limit)
    with RunningApp(str(tmp_path), socket_send_buffer_bytes="65536") as running, ExitStack() as clients:
        client = clients.enter_context(running.client())
        assert client.create_topic("wide", 3000) == ErrorCode.NONE
        ask_all = frame(9, MetadataRequest(topics=None))
        client.send(ask_all)
        answer_bytes = len(client.receive())
        total, server = running.app.services.unsent, running.app._server
        most_bytes = 0

        def is_shed() -> bool:
            nonlocal most_bytes
            most_bytes = max(most_bytes, total.memory_bytes)
            return server.dropped_count > 0 and not total.is_too_much

        greedy = [clients.enter_context(running.client()) for _ in range(4)]
        for each in greedy:
            each.send(ask_all * (2 * limit // answer_bytes))
        wait_for(lambda: total.is_too_much)
        assert client.ask(9, MetadataRequest(topics=[])).cluster_id  # whoever reads goes on
        wait_for(is_shed)
        assert most_bytes < 1.5 * limit
        assert server.dropped_count < len(greedy)
        clients.close()
        wait_for(lambda: total.memory_bytes == 0)
