"""Limits on connections by address, and on new connections per second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.network.connection_limits import ConnectionLimits, parse_overrides
from flowstone.broker.quotas.client_quotas import ClientQuotas
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE
from flowstone.config import parse_broker_config
from flowstone.errors import ConfigError
from flowstone.wire import messages as m
from tests.support.acl_clients import user
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def limits(time: Time, **settings: str) -> ConnectionLimits:
    config, _ = parse_broker_config({name.replace("_", "."): value for name, value in settings.items()})
    return ConnectionLimits(config, ClientQuotas(config, EMPTY_IMAGE), time)


def test_single_addresses_have_limits_of_their_own() -> None:
    made = limits(Time(), max_connections_per_ip="2", max_connections_per_ip_overrides="10.0.0.7:5,::1:1")
    assert made.refusal("10.0.0.1", 1) is None
    assert made.refusal("10.0.0.1", 2)
    assert made.refusal("10.0.0.7", 4) is None
    assert made.refusal("10.0.0.7", 5)
    assert made.refusal("[::1]", 1)


@pytest.mark.parametrize("pair", ["10.0.0.7", ":5", "10.0.0.7:x", "10.0.0.7:-1"])
def test_an_override_names_an_address_and_a_number(pair: str) -> None:
    with pytest.raises(ConfigError, match="is not ADDRESS:COUNT"):
        parse_overrides((pair,))


def test_the_listeners_rest_when_connections_come_faster_than_the_rate() -> None:
    time = Time()
    made = limits(time, max_connection_creation_rate="10")
    rests = [made.rest_s() for _ in range(12)]
    assert not any(rests[:10])
    assert rests[10] == pytest.approx(0.1)
    time.now += 10
    assert made.rest_s() == 0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), max_connection_creation_rate="50") as app:
        yield app


def test_an_address_over_its_quota_is_refused_and_served_again_later(app: RunningApp) -> None:
    with user(app) as admin:
        quota = m.AlterClientQuotasRequestOp(key="connection_creation_rate", value=2)
        entity = m.AlterClientQuotasRequestEntity(entity_type="ip", entity_name="127.0.0.1")
        entries = [m.AlterClientQuotasRequestEntry(entity=[entity], ops=[quota])]
        admin.ask(1, m.AlterClientQuotasRequest(entries=entries))
        served = 0
        for _ in range(10):
            with app.client() as client:
                served += is_served(client)
        assert 1 <= served <= 4
        entries = [
            m.AlterClientQuotasRequestEntry(
                entity=[entity], ops=[m.AlterClientQuotasRequestOp(key="connection_creation_rate", remove=True)]
            )
        ]
        admin.ask(1, m.AlterClientQuotasRequest(entries=entries))
        with app.client() as client:
            assert is_served(client)


def test_connections_over_the_rate_of_the_broker_are_accepted_later(app: RunningApp) -> None:
    clients = [app.client() for _ in range(70)]
    try:
        assert all(is_served(client) for client in clients)
    finally:
        for client in clients:
            client.close()


def is_served(client: Client) -> bool:
    try:
        client.ask(0, m.ApiVersionsRequest())
    except ConnectionError:
        return False
    return True
