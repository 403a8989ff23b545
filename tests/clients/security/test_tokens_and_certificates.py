"""Logins of other people's clients with a JWT (OAUTHBEARER) and with a certificate (mTLS), over TLS.

franz-go and kafkajs log in in `scripts/client_suites/logins.py`. `make test` runs the logins of kafka-python, and those
of the other clients with FLOWSTONE_LOGINS=all.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from scripts.client_suites.logins import TOKEN_LIFETIME_S, secured_broker

from flowstone.config.properties import format_properties
from tests.clients.conftest import Java
from tests.clients.security.test_logins import TIMEOUT_S, long

TOKEN, CERTIFICATE = "OAUTHBEARER", "mTLS"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed"

Known = Mapping[str, str]
both = pytest.mark.parametrize("login", [TOKEN, CERTIFICATE])


@pytest.fixture(scope="module")
def known() -> Iterator[Known]:
    """The addresses of a broker, one for each login, and what a client needs to know."""
    with secured_broker() as text:
        yield json.loads(text)


class Token(AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class AsyncToken(AsyncTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def context_of(known: Known, login: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=known["Authority"])
    if login == CERTIFICATE:
        context.load_cert_chain(known["Certificate"])
    return context


def python_config(known: Known, login: str, provider: object) -> dict[str, object]:
    config: dict[str, object] = {"ssl_context": context_of(known, login)}
    if login == CERTIFICATE:
        return {**config, "bootstrap_servers": known["Tls"], "security_protocol": "SSL"}
    return {
        **config,
        "bootstrap_servers": known["Sasl"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": TOKEN,
        "sasl_oauth_token_provider": provider,
    }


@long
@both
def test_confluent_kafka_logs_in(known, login):
    config = {"ssl.ca.location": known["Authority"]}
    if login == TOKEN:
        config |= {"bootstrap.servers": known["Sasl"], "security.protocol": "SASL_SSL", "sasl.mechanism": TOKEN}
        config["oauth_cb"] = lambda _: (known["Token"], time.time() + TOKEN_LIFETIME_S)
    else:
        config |= {"bootstrap.servers": known["Tls"], "security.protocol": "SSL"}
        config |= {"ssl.certificate.location": known["Certificate"], "ssl.key.location": known["Key"]}
    producer = Producer(config)
    delivered: list[object] = []
    producer.produce("confluent", b"x", on_delivery=lambda error, _message: delivered.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert delivered == [None]


@both
def test_kafka_python_logs_in(known, login):
    with KafkaProducer(**python_config(known, login, Token(known["Token"]))) as producer:
        assert producer.send("python", b"x").get(TIMEOUT_S).offset >= 0


@long
@both
def test_aiokafka_logs_in(known, login):
    async def send() -> None:
        producer = AIOKafkaProducer(**python_config(known, login, AsyncToken(known["Token"])))
        await producer.start()
        assert (await asyncio.wait_for(producer.send_and_wait("aio", b"x"), TIMEOUT_S)).offset >= 0
        await producer.stop()

    asyncio.run(send())


@long
@both
def test_kafkas_own_client_logs_in(java: Java, known, login, tmp_path: Path, monkeypatch):
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.location": known["Authority"]}
    if login == TOKEN:
        token = tmp_path / "token"
        token.write_text(known["Token"])
        monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED}.urls={token.as_uri()} -D{ALLOWED}.files={token}")
        properties |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": TOKEN,
            "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        }
    else:
        properties |= {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": known["Certificate"],
        }
    config = tmp_path / "client.properties"
    config.write_text(format_properties(properties))
    printed = java(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", "java", "--num-records", "100", "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", known["Sasl" if login == TOKEN else "Tls"],
        "--command-config", str(config),
    )  # fmt: skip
    assert "100 records sent" in printed
