"""What a connection of the load refuses to count: errors, lost offsets, changed bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from bench import wire
from bench.connection import Connection
from bench.workers import Load, check_batches, produce

BATCH = wire.record_batch(1_000, value_bytes=100, timestamp_ms=0)
LOAD = Load(BATCH, size_bytes=10 * len(BATCH.data), acks=1, connections=1, partitions=1)


def stored(*base_offsets: int) -> bytearray:
    """The batch as a log holds it, once at each base offset."""
    log = bytearray()
    for base_offset in base_offsets:
        log += base_offset.to_bytes(8, "big") + BATCH.data[8:]
    return log


def test_batches_in_sequence_lead_to_the_offset_after_them() -> None:
    records = memoryview(stored(0, BATCH.records))
    assert check_batches(records, BATCH, 0) == 2 * BATCH.records


def test_a_batch_cut_short_at_the_end_is_left_for_the_next_fetch() -> None:
    records = memoryview(stored(0, BATCH.records))
    assert check_batches(records[:-1], BATCH, 0) == BATCH.records


def test_a_missing_offset_is_found() -> None:
    with pytest.raises(wire.UnexpectedResponse, match=f"expected offset {BATCH.records}"):
        check_batches(memoryview(stored(0, 2 * BATCH.records)), BATCH, 0)


def test_a_changed_byte_is_found() -> None:
    records = stored(0)
    records[-1] ^= 1
    with pytest.raises(wire.UnexpectedResponse, match="other bytes"):
        check_batches(memoryview(records), BATCH, 0)


@contextmanager
def broker_answering(error_code: int, base_offset_step: int) -> Iterator[str]:
    """A peer that takes LOAD's produce requests one by one and answers each as told."""
    response = wire.produce_response("t")
    request_bytes = len(wire.produce_head("t", 0, 1, len(BATCH.data))) + len(BATCH.data)

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, suppress(ConnectionError):  # a client that refused an answer has hung up
            for number in range(LOAD.requests_per_connection):
                if len(peer.recv(request_bytes, socket.MSG_WAITALL)) < request_bytes:
                    return
                answer = (number, 1, 1, b"t", 1, 0, error_code, number * base_offset_step, -1, 0, 0)
                peer.sendall(response.pack(response.size - 4, *answer))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def test_every_acknowledged_request_has_a_latency() -> None:
    with broker_answering(0, BATCH.records) as address, Connection(address) as connection:
        phase = produce(connection, LOAD, "t", owned=[0])
    assert len(phase.latencies) == LOAD.requests_per_connection == 10


def test_an_error_code_in_a_produce_response_is_found() -> None:
    with (
        broker_answering(7, BATCH.records) as address,
        Connection(address) as connection,
        pytest.raises(wire.UnexpectedResponse),
    ):
        produce(connection, LOAD, "t", owned=[0])


def test_a_base_offset_that_repeats_is_found() -> None:
    with (
        broker_answering(0, 0) as address,
        Connection(address) as connection,
        pytest.raises(wire.UnexpectedResponse, match=f"at {BATCH.records}"),
    ):
        produce(connection, LOAD, "t", owned=[0])
