"""A broker as its administrative handlers see it: real metadata, real codec, no network and no log directory."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import Any, cast

import pytest

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.coordinator_host import HostServices
from flowstone.broker.coordinators.group_coordinator import GroupCoordinator
from flowstone.broker.coordinators.local_markers import LocalMarkers
from flowstone.broker.coordinators.share.share_states import ShareStates
from flowstone.broker.coordinators.transaction_coordinator import TransactionCoordinator
from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.requests.context import RequestContext
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.requests.session import ClientSession
from flowstone.broker.wiring import make_services
from flowstone.cluster.decisions.registration import register_broker
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, Endpoint
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.config import parse_broker_config
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.served_partitions import Partitions
from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_decoder, request_encoder, response_decoder, response_encoder
from flowstone.wire.messages import CreateTopicsRequest, CreateTopicsRequestTopic


class NoLogDirectory:
    async def wait_forgotten(self) -> None:
        """Nothing was stored, so there is nothing to forget."""


class AdminBroker:
    """One broker of a cluster; further ones only exist in its metadata."""

    def __init__(self, *, brokers: int = 1, **settings: str) -> None:
        values = {name.replace("_", "."): value for name, value in settings.items()}
        config, topic_defaults = parse_broker_config(values)
        self.log = MemoryLog()
        self.metadata = Metadata(self.log)
        for node_id in range(1, brokers + 1):
            listeners = {"PLAINTEXT": Endpoint(f"host-{node_id}", 9092), "INSIDE": Endpoint("inside", 9000 + node_id)}
            broker = BrokerImage(node_id, f"rack-{node_id}", listeners)
            register = partial(register_broker, broker=broker, is_clean=True, new_id=random_id)
            asyncio.run(self.metadata.change(register))
        unused = cast(Any, None)
        clock, partitions = SimulatedClock(), Partitions()
        groups = GroupCoordinator(config, clock, self.metadata, partitions, unused)
        host_services = HostServices(config, clock, self.metadata, partitions, unused)
        peers = BrokerPeers("INSIDE", self.metadata, clock, unused)
        self.services = make_services(
            config=config,
            topic_defaults=topic_defaults,
            clock=clock,
            metadata=self.metadata,
            logs=cast(Any, NoLogDirectory()),
            partitions=partitions,
            waiting=unused,
            fetch_sessions=unused,
            preparing=unused,
            workers=unused,
            groups=groups,
            transactions=TransactionCoordinator(
                host_services,
                LocalMarkers(partitions, self.metadata, clock, groups),
                lambda: BrokerPeers("INSIDE", self.metadata, clock, unused),
            ),
            share_states=ShareStates(host_services, peers),
        )

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    def call(self, version: int, request: Any, listener_name: str = "PLAINTEXT") -> Any:
        return asyncio.run(self.ask(version, request, listener_name))

    async def ask(self, version: int, request: Any, listener_name: str = "PLAINTEXT") -> Any:
        """The response as a client of that version reads it, to the request as the broker of that version reads it."""
        api = next(api for api in APIS.values() if isinstance(request, api.request))
        endpoint = ENDPOINTS[api.key]
        assert endpoint.min_version <= version <= endpoint.max_version
        received = request_decoder(api.key, version)(memoryview(_joined(request_encoder(api.key, version)(request))), 0)
        response: Any = endpoint.handler(self.services, self.context(api.key, version, listener_name), received)
        if inspect.isawaitable(response):
            response = await response
        is_encoded = isinstance(response, EncodedResponse)
        chunks = response.chunks if is_encoded else response_encoder(api.key, version)(response)
        return response_decoder(api.key, version)(memoryview(_joined(chunks)), 0)

    def context(self, api_key: int, version: int, listener_name: str = "PLAINTEXT") -> RequestContext:
        return RequestContext(api_key, version, 1, ClientSession(listener_name, "127.0.0.1:1"))

    def create(self, *names: str, num_partitions: int = 1) -> None:
        topics = [
            CreateTopicsRequestTopic(name=name, num_partitions=num_partitions, replication_factor=1) for name in names
        ]
        response = self.call(7, CreateTopicsRequest(topics=topics))
        assert not any(topic.error_code for topic in response.topics)


def _joined(chunks: Any) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


@pytest.fixture
def broker() -> AdminBroker:
    return AdminBroker()


@pytest.fixture
def make_broker() -> type[AdminBroker]:
    return AdminBroker
