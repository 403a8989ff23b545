"""Listeners with TLS: real clients, users from certificates, changed certificates, and handshakes that do not end."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import time
import warnings
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from flowstone.ports.pem_source import PemSource
from flowstone.ports.tls_contexts import client_context
from flowstone.wire.messages import MetadataRequest
from tests.support.running_app import RunningApp
from tests.support.security.secured import authority, client_settings, log_in, secured_app
from tests.support.wire_client import Client

TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(directory):
    settings = {
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
        "connection.login.timeout.ms": "700",
    }
    with secured_app(directory, **settings) as running:
        yield running


def tls_client(broker: RunningApp, listener: str, **more: str) -> Client:
    client = broker.client(listener)
    context = client_context(PemSource(trusted_certificates=authority().certificate, **more))
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    return client


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ],
)
def test_records_arrive_over_every_kind_of_listener(broker, directory, protocol, mechanism):
    settings = client_settings(broker, directory, protocol, mechanism)
    topic = f"{protocol}-{mechanism}"
    values = [os.urandom(20_000) for _ in range(50)] + [b"x" * 900_000]  # several records of TLS, and sendfile
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**settings, "group.id": topic, "enable.auto.commit": False})
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(topic, 0, 0)])
    got = []
    while len(got) < len(values):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        got.append(message.value())
    consumer.close()
    assert got == values


@pytest.mark.parametrize(("version", "name"), [("TLSv1.2", "TLSv1.2"), ("TLSv1.3", "TLSv1.3")])
def test_both_versions_of_tls_are_spoken(broker, version, name):
    with tls_client(broker, "SSL", versions=(version,)) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == name
        assert client.ask(9, MetadataRequest(topics=None)).brokers


def test_a_certificate_names_the_user(broker):
    alice = authority().issue("alice")
    with tls_client(broker, "SSL", key=alice.key, certificate_chain=alice.certificate) as client:
        client.ask(9, MetadataRequest(topics=None))
        assert principal_of(broker, client) == "User:alice"
    with tls_client(broker, "SSL") as client:
        client.ask(9, MetadataRequest(topics=None))
        assert principal_of(broker, client) == "User:ANONYMOUS"


def test_a_login_names_the_user_whatever_the_certificate_says(broker):
    alice = authority().issue("alice")
    with tls_client(broker, "SASL_SSL", key=alice.key, certificate_chain=alice.certificate) as client:
        log_in(client)
        assert principal_of(broker, client) == "User:admin"


def principal_of(broker: RunningApp, client: Client) -> str:
    host, port = client.socket.getsockname()
    sessions = broker.call(lambda: [each.session for each in broker.app._server._connections])
    return next(str(each.principal) for each in sessions if each.peer == f"{host}:{port}")


@pytest.mark.parametrize(("name", "log"), [("Alice-1", "no rule"), ("mallory", "CERTIFICATE_VERIFY_FAILED")])
def test_a_certificate_without_a_user_or_of_a_stranger_is_refused(broker, caplog, name, log):
    caplog.set_level(logging.INFO)
    from flowstone.ports.certificates import Authority

    issuer = authority() if name == "Alice-1" else Authority.create("someone else")
    issued = issuer.issue(name)
    # With TLS 1.3 the client's handshake is complete before the server has checked its certificate.
    with (
        tls_client(broker, "SSL", key=issued.key, certificate_chain=issued.certificate) as client,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        client.ask(9, MetadataRequest(topics=None))
    ends = time.monotonic() + TIMEOUT_S
    while log not in caplog.text and time.monotonic() < ends:  # the broker logs it after it has closed
        time.sleep(0.01)
    assert log in caplog.text


def test_an_expired_certificate_is_refused_and_the_audit_log_says_so(broker, directory):
    expired = authority().issue("late", days=-0.01)
    with (
        tls_client(broker, "SSL", key=expired.key, certificate_chain=expired.certificate) as client,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        client.ask(9, MetadataRequest(topics=None))
    path, ends = directory / "data" / "audit" / "audit.jsonl", time.monotonic() + TIMEOUT_S
    while not (path.exists() and "CERTIFICATE_VERIFY_FAILED" in path.read_text()) and time.monotonic() < ends:
        time.sleep(0.01)
    line = next(each for each in map(json.loads, path.read_text().splitlines()) if "VERIFY" in each.get("reason", ""))
    assert (line["event"], line["host"], line["mechanism"]) == ("login.failed", "127.0.0.1", "SSL")


def test_older_versions_of_tls_are_refused(broker):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")  # or this client refuses it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with broker.client("SSL") as client, pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        context.wrap_socket(client.socket)


def test_handshakes_that_do_not_end_are_closed_and_do_no_harm(broker, directory, caplog):
    caplog.set_level(logging.INFO)
    address = broker.app.addresses["SSL"]
    halves = [socket.create_connection(address) for _ in range(100)]
    for each in halves[:50]:
        each.sendall(b"\x16\x03\x01\x02\x00\x01")
    started = time.monotonic()
    assert AdminClient(client_settings(broker, directory, "SSL")).list_topics(timeout=TIMEOUT_S).brokers
    assert time.monotonic() - started < 2
    for each in halves:
        each.settimeout(TIMEOUT_S)
        assert each.recv(100)[:1] in (b"", b"\x15")  # closed, maybe after an alert
        each.close()
    assert "handshake was not complete within connection.login.timeout.ms" in caplog.text
    deadline = time.monotonic() + TIMEOUT_S
    while broker.call(lambda: sum(broker.app._server._per_host.values())) > 50:
        assert time.monotonic() < deadline


def test_renegotiation_is_refused(broker):
    with tls_client(broker, "SSL", versions=("TLSv1.2",)) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert not hasattr(client.socket, "renegotiate")
        admission = broker.app._server._admissions["SSL"]
        assert admission._context is not None
        assert admission._context.current.options & ssl.OP_NO_RENEGOTIATION


def test_a_changed_certificate_is_used_without_a_restart(tmp_path):
    with secured_app(tmp_path, "SSL://127.0.0.1:0") as broker, tls_client(broker, "SSL") as kept:
        before = certificate_of(kept)
        changed = tmp_path / "changed.pem"
        changed.write_text(authority().issue("renewed", ["localhost"]).pem)
        os.replace(changed, tmp_path / "server.pem")
        with tls_client(broker, "SSL") as client:
            assert certificate_of(client) != before
        assert kept.ask(9, MetadataRequest(topics=None)).brokers


def certificate_of(client: Client) -> bytes | None:
    assert isinstance(client.socket, ssl.SSLSocket)
    return client.socket.getpeercert(binary_form=True)


def test_plain_requests_to_a_tls_listener_are_closed(broker):
    with broker.client("SSL") as client:
        client.send(b"\0\0\0\x20" + bytes(32))
        with suppress(ConnectionResetError):
            assert client.socket.recv(1 << 16)[:1] in (b"", b"\x15")
