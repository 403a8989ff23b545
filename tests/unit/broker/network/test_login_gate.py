"""Each failure of a login on the wire: the error, whether the connection is closed, and the delay."""

from __future__ import annotations

import struct
import time

import pytest

from flowstone.authentication.scram import ScramClient, ScramMechanism
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    ApiVersionsRequest,
    ListGroupsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import PASSWORD, USER, authenticate, handshake, log_in, secured_app
from tests.support.wire_client import Closed, frame

LISTENER = "SASL_PLAINTEXT"
DELAY_S = 0.1
TIMER_S = 0.002  # timers have a resolution of a millisecond


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="builder";'
        )
    }
    with secured_app(tmp_path_factory.mktemp("broker"), f"{LISTENER}://127.0.0.1:0", **settings) as running:
        yield running


@pytest.fixture
def client(broker: RunningApp):
    with broker.client(LISTENER) as client:
        yield client


def test_a_login_opens_the_connection(client):
    assert client.ask(3, ApiVersionsRequest(client_software_name="x", client_software_version="1")).api_keys
    assert handshake(client, "SCRAM-SHA-256").mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_after_a_login_requests_are_answered(client):
    answer = log_in(client)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert client.ask(9, MetadataRequest(topics=None)).brokers


@pytest.mark.parametrize("message", [b"\0bob\0builder", f"\0{USER}\0{PASSWORD}".encode()])
def test_plain_takes_users_of_the_settings_and_of_scram(client, message):
    handshake(client, "PLAIN")
    assert not authenticate(client, message).error_code
    assert client.ask(9, MetadataRequest(topics=None)).brokers


def test_tokens_without_requests_around_them_follow_a_handshake_of_version_0(client):
    handshake(client, "PLAIN", version=0)
    message = b"\0bob\0builder"
    client.send(struct.pack(">i", len(message)) + message)
    assert client.receive() == b""
    assert client.ask(9, MetadataRequest(topics=None)).brokers


def test_a_bad_token_after_a_handshake_of_version_0_closes_the_connection(client):
    handshake(client, "PLAIN", version=0)
    message = b"\0bob\0guess"
    client.send(struct.pack(">i", len(message)) + message)
    assert client.closed_after_s() >= DELAY_S


@pytest.mark.parametrize("request_", [MetadataRequest(topics=None), SaslAuthenticateRequest(auth_bytes=b"x")])
def test_another_request_before_the_handshake_closes_the_connection(client, request_):
    client.send(frame(1, request_, 1))
    client.closed_after_s()


@pytest.mark.parametrize("size", [524_289, 2**31 - 1, -1])
def test_a_frame_that_is_too_long_closes_the_connection(client, size):
    client.send(struct.pack(">i", size) + b"\0\x12")
    client.closed_after_s()


def test_after_the_login_frames_may_be_longer(client):
    log_in(client)
    client.send(struct.pack(">i", 600_000) + b"\0\x03")
    with pytest.raises(AssertionError, match="still open"):
        client.closed_after_s(0.2)


def test_another_request_during_the_login_is_answered_with_its_error(client):
    handshake(client)
    assert client.ask(4, ListGroupsRequest()).error_code == ErrorCode.ILLEGAL_SASL_STATE
    client.closed_after_s()


def test_a_request_without_a_field_for_errors_is_answered_without_entries(client):
    handshake(client)
    assert client.ask(9, MetadataRequest(topics=None)).topics == []
    client.closed_after_s()


def test_what_follows_a_failed_login_without_waiting_for_its_answer_is_not_read(client):
    handshake(client, "PLAIN")
    good, guess = f"\0{USER}\0{PASSWORD}".encode(), f"\0{USER}\0guess".encode()
    client.send(b"".join(frame(2, SaslAuthenticateRequest(auth_bytes=message), 7) for message in (guess, good)))
    assert struct.unpack_from(">h", client.receive(), 5) == (ErrorCode.SASL_AUTHENTICATION_FAILED,)
    with pytest.raises(Closed):
        client.receive()


def test_an_unknown_mechanism_is_refused_with_those_that_are_enabled(client):
    answer = handshake(client, "GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    client.closed_after_s()


@pytest.mark.parametrize(
    "message", [b"\0bob\0guess", b"\0nobody\0guess", b"\0admin\0guess", b"guess", b"root\0bob\0builder"]
)
def test_every_failed_login_has_the_same_answer_after_a_delay(client, message):
    handshake(client, "PLAIN")
    started = time.monotonic()
    answer = authenticate(client, message)
    assert time.monotonic() - started >= DELAY_S - TIMER_S
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
    )
    client.closed_after_s()


def test_an_unknown_user_of_scram_is_not_told_from_a_wrong_password(broker):
    answers = {}
    for user in (USER, "nobody"):
        with broker.client(LISTENER) as client:
            answer = log_in(client, user, "guess")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            answers[user] = answer
            client.closed_after_s()
        with broker.client(LISTENER) as client:
            handshake(client)
            scram = ScramClient(ScramMechanism.SHA_512, user, "nonce")
            challenge = scram.parse_challenge(bytes(authenticate(client, scram.first()).auth_bytes))
            answers[user, "salt"] = len(challenge.salt), challenge.iterations
    assert answers[USER].error_message == answers["nobody"].error_message
    assert answers[USER, "salt"] == answers["nobody", "salt"]


def test_a_second_handshake_is_refused_if_sessions_do_not_expire(client):
    log_in(client)
    assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
    client.closed_after_s()


def test_a_client_that_is_not_logged_in_in_time_is_closed(tmp_path):
    settings = {"connection.login.timeout.ms": "300"}
    with secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings) as broker, broker.client(LISTENER) as client:
        handshake(client)
        assert client.closed_after_s(4.0) > 0.2


def test_a_session_ends_unless_the_client_logs_in_again(tmp_path):
    settings = {"connections.max.reauth.ms": "1500"}
    with (
        secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings) as broker,
        broker.client(LISTENER) as client,
        broker.client(LISTENER) as idle,
        broker.client(LISTENER) as other,
    ):
        assert log_in(client).session_lifetime_ms == 1500
        log_in(idle)
        log_in(other)
        time.sleep(1.1)
        assert log_in(client).session_lifetime_ms == 1500
        handshake(other, "PLAIN")
        again = authenticate(other, f"\0{USER}\0{PASSWORD}".encode())
        assert again.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED  # another mechanism than before
        time.sleep(0.6)
        assert client.ask(9, MetadataRequest(topics=None)).brokers
        idle.send(frame(9, MetadataRequest(topics=None), 1))
        idle.closed_after_s()
        with pytest.raises(Closed):
            other.ask(9, MetadataRequest(topics=None))


def test_a_listener_without_sasl_has_no_logins(tmp_path):
    with RunningApp(str(tmp_path)) as broker, broker.client() as client:
        assert handshake(client).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(client, b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_nobody_logs_in_again_as_another_user(tmp_path):
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "connections.max.reauth.ms": "60000",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required user_bob=builder user_eve=apple;",
    }
    with secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings) as broker, broker.client(LISTENER) as client:
        handshake(client, "PLAIN")
        assert not authenticate(client, b"\0bob\0builder").error_code
        time.sleep(1.1)  # sooner than a second after the last login it is refused
        handshake(client, "PLAIN")
        assert authenticate(client, b"\0eve\0apple").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        client.closed_after_s()
