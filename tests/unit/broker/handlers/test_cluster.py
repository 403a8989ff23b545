"""ApiVersions, DescribeCluster, InitProducerId and FindCoordinator as clients of every version see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.handlers.api_versions import TELEMETRY
from flowstone.broker.handlers.init_producer_id import PRODUCER_ID_WAIT_S_MAX
from flowstone.broker.requests.context import RequestContext
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.ids import id_text
from flowstone.errors import ErrorCode
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_decoder, response_encoder
from flowstone.wire.messages import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)

SOFTWARE = {"client_software_name": "a-client", "client_software_version": "1.2.3-rc.4"}
GROUP, TRANSACTION, SHARE = 0, 1, 2
API_VERSIONS, INIT_PRODUCER_ID = 18, 22
TURNS = 5  # of the loop, until a request waits for what it waits for


@pytest.mark.parametrize("version", range(5))
def test_every_api_served_is_advertised_with_its_versions(broker: Any, version: int) -> None:
    response = broker.call(version, ApiVersionsRequest(**SOFTWARE))
    assert response.error_code == ErrorCode.NONE
    listed = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert listed.pop(0) == (0, ENDPOINTS[0].max_version)
    others = {key: each for key, each in ENDPOINTS.items() if key != 0 and key not in TELEMETRY}
    assert listed == {key: (each.min_version, each.max_version) for key, each in others.items()}


def test_only_the_stable_versions_of_kafka_4_3_are_advertised(broker: Any) -> None:
    listed = {each.api_key: each.max_version for each in broker.call(4, ApiVersionsRequest(**SOFTWARE)).api_keys}
    assert (listed[API_VERSIONS], listed[INIT_PRODUCER_ID]) == (4, 5)


def test_nothing_is_served_that_the_codec_does_not_know() -> None:
    for key, endpoint in ENDPOINTS.items():
        assert APIS[key].min_version <= endpoint.min_version <= endpoint.max_version <= APIS[key].max_version


@pytest.mark.parametrize("version", [5, 99])
def test_a_version_from_the_future_is_told_what_there_is(broker: Any, version: int) -> None:
    context = RequestContext(18, version, 1, ClientSession("PLAINTEXT", "127.0.0.1:1"))
    response = ENDPOINTS[18].handler(broker.services, context, ApiVersionsRequest())
    read = response_decoder(18, 0)(memoryview(b"".join(response_encoder(18, 0)(response))), 0)
    assert read.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (18, 0, 4) in [(each.api_key, each.min_version, each.max_version) for each in read.api_keys]


@pytest.mark.parametrize("version", range(3, 5))
@pytest.mark.parametrize("text", ["", "-a", "a-", "a b", "a/b", "ü"])
def test_software_that_does_not_name_itself_properly_is_refused(broker: Any, version: int, text: str) -> None:
    for field in SOFTWARE:
        response = broker.call(version, ApiVersionsRequest(**{**SOFTWARE, field: text}))
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(make_broker: Any, version: int) -> None:
    broker = make_broker(brokers=2)
    response = broker.call(version, DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert (response.error_code, response.cluster_id) == (ErrorCode.NONE, broker.image.cluster_id)
    assert response.controller_id == 1
    assert [(each.broker_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (1, "host-1", 9092, "rack-1"),
        (2, "host-2", 9092, "rack-2"),
    ]
    assert response.cluster_authorized_operations > 0
    assert broker.call(version, DescribeClusterRequest()).cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("endpoint_type", "error"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (7, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_only_brokers_are_described_here(broker: Any, endpoint_type: int, error: ErrorCode) -> None:
    response = broker.call(1, DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (response.error_code, response.brokers) == (error, [])


@pytest.mark.parametrize("version", range(6))
def test_every_idempotent_producer_gets_an_id_of_its_own_at_epoch_0(broker: Any, version: int) -> None:
    answers = [broker.call(version, InitProducerIdRequest(transactional_id=None)) for _ in range(3)]
    assert [(each.error_code, each.producer_id, each.producer_epoch) for each in answers] == [
        (ErrorCode.NONE, producer_id, 0) for producer_id in range(3)
    ]


def test_a_producer_hears_soon_that_this_broker_has_no_id_for_it(broker: Any) -> None:
    """It is cut off from the metadata log; once it is not, there are ids again, and none was given twice."""

    async def body() -> None:
        broker.log.cut()
        asking = [asyncio.ensure_future(broker.ask(4, InitProducerIdRequest(transactional_id=None))) for _ in range(2)]
        for _ in range(TURNS):
            await asyncio.sleep(0)
        broker.services.clock.advance(PRODUCER_ID_WAIT_S_MAX)
        answers = await asyncio.gather(*asking)
        assert [each.error_code for each in answers] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
        broker.log.heal()
        answers = [await broker.ask(4, InitProducerIdRequest(transactional_id=None)) for _ in range(2)]
        assert [each.producer_id for each in answers] == [0, 1]

    asyncio.run(body())


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(
    ("transactional_id", "error"), [("", ErrorCode.INVALID_REQUEST), ("t", ErrorCode.NOT_COORDINATOR)]
)
def test_a_transactional_producer_needs_its_coordinator(
    broker: Any, version: int, transactional_id: str, error: ErrorCode
) -> None:
    answer = broker.call(version, InitProducerIdRequest(transactional_id=transactional_id))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)


@pytest.mark.parametrize("version", range(4))
def test_one_coordinator_is_asked_for_up_to_version_3(broker: Any, version: int) -> None:
    response = broker.call(version, FindCoordinatorRequest(key="g"))
    assert (response.error_code, response.node_id, response.host, response.port) == (ErrorCode.NONE, 1, "host-1", 9092)


@pytest.mark.parametrize("version", range(4, 7))
def test_many_coordinators_are_asked_for_since_version_4(broker: Any, version: int) -> None:
    response = broker.call(version, FindCoordinatorRequest(coordinator_keys=["g", "h"]))
    assert [(each.key, each.error_code, each.node_id) for each in response.coordinators] == [("g", 0, 1), ("h", 0, 1)]


def test_a_coordinator_is_told_by_the_listener_of_whoever_asks(broker: Any) -> None:
    response = broker.call(4, FindCoordinatorRequest(coordinator_keys=["g"]), "INSIDE")
    assert [(each.host, each.port) for each in response.coordinators] == [("inside", 9001)]


def test_the_first_search_for_a_groups_coordinator_makes_the_offsets_topic(make_broker: Any) -> None:
    broker = make_broker(brokers=2, offsets_topic_num_partitions="7")
    broker.call(0, FindCoordinatorRequest(key="g"))
    topic = broker.image.topics["__consumer_offsets"]
    assert (len(topic.partitions), len(topic.partitions[0].replicas)) == (7, 2)
    assert dict(topic.configs) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "max.message.bytes": "16777216",
        "segment.bytes": "4194304",
    }


def test_groups_are_spread_over_the_brokers(make_broker: Any) -> None:
    broker = make_broker(brokers=3, offsets_topic_num_partitions="6")
    keys = [f"group-{number}" for number in range(50)]
    response = broker.call(4, FindCoordinatorRequest(coordinator_keys=keys))
    assert {each.node_id for each in response.coordinators} == {1, 2, 3}


@pytest.mark.parametrize(
    ("version", "key_type", "error"),
    [
        (1, 5, ErrorCode.INVALID_REQUEST),
        (3, SHARE, ErrorCode.INVALID_REQUEST),
        (3, 9, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_coordinator_that_will_never_come_is_refused_for_good(
    broker: Any, version: int, key_type: int, error: ErrorCode
) -> None:
    response = broker.call(version, FindCoordinatorRequest(key="k", key_type=key_type))
    assert response.error_code == error
    assert response.error_message


@pytest.mark.parametrize("key_type", [GROUP, TRANSACTION])
def test_the_coordinators_topic_is_created_when_one_is_asked_for(broker: Any, key_type: int) -> None:
    name = {GROUP: "__consumer_offsets", TRANSACTION: "__transaction_state"}[key_type]
    assert name not in broker.image.topics
    assert broker.call(1, FindCoordinatorRequest(key="k", key_type=key_type)).node_id == 1
    assert name in broker.image.topics


def test_share_coordinators_exist_since_version_6(broker: Any) -> None:
    def error(version: int, key: str = f"g:{id_text(bytes(16))}:0") -> int:
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=SHARE)
        code: int = broker.call(version, request).coordinators[0].error_code
        return code

    assert (error(5), error(6)) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert [error(6, key) for key in ("s", ":AA:0", "g:A:0", f"g:{id_text(bytes(16))}:x")] == [42] * 4
