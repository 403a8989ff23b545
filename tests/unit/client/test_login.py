"""The thin client over every kind of listener: TLS, logins, logging in again, and what it says when refused."""

from __future__ import annotations

import asyncio
import pickle
import time
from base64 import b64encode

import pytest
from confluent_kafka import Producer

from flowstone.client import Cluster
from flowstone.client.connection import Address
from flowstone.client.errors import GaveUp, LoginFailed
from flowstone.client.peer import Peer, SecuredNetwork
from flowstone.client.security import ClientSecurity, parse_security
from flowstone.errors import ConfigError
from flowstone.ports.clock import SystemClock
from flowstone.ports.network import SystemNetwork
from flowstone.types import TopicPartition
from flowstone.wire.messages import MetadataRequest, MetadataResponse
from tests.support.running_app import RunningApp
from tests.support.security.secured import PASSWORD, USER, authority, client_settings, secured_app
from tests.support.security.tokens import app_with_tokens, create, logged_in

TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(directory):
    with secured_app(directory, **{"connections.max.reauth.ms": "1300"}) as running:
        yield running


def security(directory, protocol="SASL_SSL", mechanism="SCRAM-SHA-512", **more) -> ClientSecurity:
    properties = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.truststore.location": str(directory / "ca.pem"),
    }
    return parse_security({**properties, **{name.replace("_", "."): value for name, value in more.items()}})


def bootstrap(broker: RunningApp, protocol: str) -> str:
    return f"localhost:{broker.app.addresses[protocol][1]}"


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
)
def test_records_are_read(broker, directory, protocol, mechanism):
    producer = Producer(client_settings(broker, directory, "PLAINTEXT"))
    topic = f"{protocol}.{mechanism}"
    for _ in range(100):
        producer.produce(topic, b"x" * 10_000, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    known = pickle.loads(pickle.dumps(security(directory, protocol, mechanism)))
    with Cluster(bootstrap(broker, protocol), security=known) as cluster:
        assert cluster.topics([topic]) == {topic: 1}
        fetched = list(cluster.fetch(TopicPartition(topic, 0), 0, 100))
    assert sum(len(each.records) for each in fetched) > 1_000_000


def test_a_client_logs_in_again_before_its_session_ends(broker, directory):
    with Cluster(bootstrap(broker, "SASL_SSL"), security=security(directory)) as cluster:
        cluster.topics()
        connection = next(iter(cluster.brokers._shared.values()))
        for _ in range(5):
            time.sleep(0.4)
            cluster.topics()
        assert next(iter(cluster.brokers._shared.values())) is connection


def test_a_client_logs_in_with_a_delegation_token(tmp_path):
    with app_with_tokens(tmp_path) as broker:
        with logged_in(broker, "alice") as alice:
            token = create(alice)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        password = b64encode(token.hmac).decode()
        login = f'{module} required username="{token.token_id}" password="{password}" tokenauth="true";'
        properties = {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login,
        }  # fmt: skip
        known = pickle.loads(pickle.dumps(parse_security(properties)))
        assert password not in repr(known)
        with Cluster(bootstrap(broker, "SASL_PLAINTEXT"), security=known) as cluster:
            assert cluster.topics() == {}
        with pytest.raises(ConfigError, match="librdkafka, which cannot log in with a delegation token"):
            known.librdkafka()
        with pytest.raises(ConfigError, match="a delegation token needs SCRAM"):
            parse_security({**properties, "sasl.mechanism": "PLAIN"})


def test_a_peer_logs_in_again_before_its_session_ends(broker, directory):
    async def ask() -> None:
        network = SecuredNetwork(SystemNetwork(), security(directory))
        address = Address("localhost", broker.app.addresses["SASL_SSL"][1])
        peer = await Peer.connect(network, SystemClock(), address, "peer", TIMEOUT_S)
        for _ in range(5):
            assert (await peer.ask(MetadataRequest(topics=None), MetadataResponse, TIMEOUT_S)).brokers
            await asyncio.sleep(0.4)
        peer.close()
        wrong = SecuredNetwork(SystemNetwork(), security(directory, sasl_password="guess"))
        with pytest.raises(LoginFailed, match="refused the login of 'admin'"):
            await Peer.connect(wrong, SystemClock(), address, "peer", TIMEOUT_S)

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sasl_password": "guess-canary"}, "refused the login of 'admin' with SCRAM-SHA-512"),
        ({"sasl_username": "nobody"}, "refused the login of 'nobody'"),
        ({"ssl_truststore_location": ""}, "do not trust each other.*ssl.truststore.location"),
    ],
)
def test_a_refusal_is_final_and_says_why_without_secrets(broker, directory, more, message):
    known = security(directory, **more)
    with (
        Cluster(bootstrap(broker, "SASL_SSL"), security=known) as cluster,
        pytest.raises(LoginFailed, match=message) as told,
    ):
        cluster.topics()
    assert "canary" not in f"{told.value!r} {told.value}"
    assert "canary" not in repr(known)


def test_another_protocol_than_the_listeners_is_told(broker, directory):
    with (
        Cluster(bootstrap(broker, "PLAINTEXT"), security=security(directory)) as cluster,
        pytest.raises((LoginFailed, GaveUp)),
    ):
        cluster.topics(deadline_s=0.5)
    with (
        Cluster(bootstrap(broker, "PLAINTEXT"), security=security(directory, "SASL_PLAINTEXT")) as cluster,
        pytest.raises(LoginFailed, match="has no logins"),
    ):
        cluster.topics()


def test_a_certificate_is_shown_to_the_broker(tmp_path):
    alice = authority().issue("alice")
    settings = {"ssl.client.auth": "required"}
    with secured_app(tmp_path, "SSL://127.0.0.1:0", **settings) as broker:
        shown = security(tmp_path, "SSL", ssl_keystore_key=alice.key, ssl_keystore_certificate_chain=alice.certificate)
        with Cluster(bootstrap(broker, "SSL"), security=shown) as cluster:
            assert cluster.topics() == {}
        with (
            Cluster(bootstrap(broker, "SSL"), security=security(tmp_path, "SSL")) as cluster,
            pytest.raises((LoginFailed, GaveUp)),
        ):
            cluster.topics(deadline_s=0.5)
