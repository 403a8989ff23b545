"""A flood of made-up producer ids: the retry of a producer that is at work is still known for what it is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from flowstone.broker.requests.producer_admission import CONNECTION_NEW_IDS_MAX
from flowstone.errors import ErrorCode
from flowstone.log.partition.producers.producer_state import PRODUCERS_MAX
from flowstone.wire.codec import response_decoder
from flowstone.wire.frames import parse_response_header
from flowstone.wire.messages import InitProducerIdRequest
from flowstone.wire.record_batch import Record, build_batch
from tests.support.wire_client import Client, frame, produce_request

from .conftest import StartBroker

MADE_UP_IDS = PRODUCERS_MAX + 10
MADE_UP_IDS_OF_ONE = PRODUCERS_MAX // 5
IN_FLIGHT = 100
PRODUCE_VERSION = 9


def batch(producer_id: int, sequence: int = 0) -> bytes:
    return build_batch([Record(0, 0, None, b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def ask_all(client: Client, topic: str, batches: list[bytes]) -> list[int]:
    """The error codes that pipelined requests are answered with."""
    client.send(b"".join(frame(PRODUCE_VERSION, produce_request(topic, each)) for each in batches))
    decode, codes = response_decoder(0, PRODUCE_VERSION), []
    for _ in batches:
        response = memoryview(client.receive())
        _, position = parse_response_header(response, 0, True)
        codes.append(decode(response, position).responses[0].partition_responses[0].error_code)
    return codes


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("connections", "made_up"), [(1, MADE_UP_IDS_OF_ONE), (120, MADE_UP_IDS)])
def test_a_flood_of_made_up_ids_takes_no_place_from_a_producer_at_work(
    start_broker: StartBroker, connections: int, made_up: int
) -> None:
    broker = start_broker()
    with ExitStack() as stack, broker.connect() as worker:
        worker.create_topic("orders")
        own_id = worker.ask(4, InitProducerIdRequest(transactional_id=None)).producer_id
        first = worker.produce("orders", batch(own_id))
        crowd = [stack.enter_context(broker.connect()) for _ in range(connections)]
        taken = 0
        for begin in range(0, made_up, IN_FLIGHT):
            codes = ask_all(
                crowd[begin // IN_FLIGHT % connections],
                "orders",
                [batch(1 << 40 | begin + at) for at in range(IN_FLIGHT)],
            )
            assert set(codes) <= {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
            taken += codes.count(ErrorCode.NONE)
        assert CONNECTION_NEW_IDS_MAX <= taken < made_up / 2
        again = worker.produce("orders", batch(own_id))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first.base_offset)
        assert worker.produce("orders", batch(own_id, 1)).error_code == ErrorCode.NONE


def test_a_connection_that_asks_for_ids_without_end_is_told_to_wait(start_broker: StartBroker) -> None:
    broker = start_broker()
    with broker.connect() as client:
        request = InitProducerIdRequest(transactional_id=None)
        asked = [client.ask(4, request) for _ in range(CONNECTION_NEW_IDS_MAX + 500)]
    assert asked[0].error_code == ErrorCode.NONE
    assert asked[-1].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with broker.connect() as other:
        assert other.ask(4, InitProducerIdRequest(transactional_id=None)).error_code == ErrorCode.NONE
