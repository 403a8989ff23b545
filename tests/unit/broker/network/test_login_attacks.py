"""Attacks on the login itself: messages out of order, other mechanisms halfway, huge messages, floods, and timing."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from statistics import median

import pytest

from flowstone.authentication.plain import encode
from flowstone.authentication.scram import ScramClient, ScramMechanism, has_password, salted_password
from flowstone.broker.authentication import mechanisms
from flowstone.broker.loop.login_checks import LOGIN_CHECKS_MAX
from flowstone.cli.up.log_output import _JsonFormatter, _LineFormatter
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import PASSWORD, USER, authenticate, handshake, log_in, secured_app
from tests.support.security.tokens import app_with_tokens, create, log_in_with, logged_in
from tests.support.wire_client import Client, Closed, frame

LISTENER = "SASL_PLAINTEXT"
WAIT_S = 10.0
REFUSED, ILLEGAL = ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.ILLEGAL_SASL_STATE
PLAIN_OF_ADMIN, SCRAM_512 = encode(USER, PASSWORD), ScramMechanism.SHA_512
FORMATTERS = {"text": _LineFormatter(), "json": _JsonFormatter()}
BOB = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="builder";'


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[RunningApp]:
    settings = {"connections.max.reauth.ms": "60000", "listener.name.sasl_plaintext.plain.sasl.jaas.config": BOB}
    with secured_app(tmp_path_factory.mktemp("broker"), f"{LISTENER}://127.0.0.1:0", **settings) as running:
        yield running


@pytest.fixture
def client(broker: RunningApp) -> Iterator[Client]:
    with broker.client(LISTENER) as client:
        yield client


def begun(client: Client) -> tuple[ScramClient, bytes]:
    """Begin a login with SCRAM; return it and the final message, which has not been sent."""
    handshake(client)
    scram = ScramClient(SCRAM_512, USER, "nonce")
    challenge = scram.parse_challenge(bytes(authenticate(client, scram.first()).auth_bytes))
    return scram, scram.final(salted_password(SCRAM_512, PASSWORD, *challenge))


def is_closed_to_requests(client: Client) -> bool:
    try:
        client.ask(9, MetadataRequest(topics=None))
    except Closed:
        return True
    return False


# Out of order


def test_another_mechanism_in_the_middle_of_a_login_is_refused(client):
    begun(client)
    assert handshake(client, "PLAIN").error_code == ILLEGAL
    assert is_closed_to_requests(client)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_second_handshake_before_the_login_is_refused(client, mechanism):
    assert not handshake(client, mechanism).error_code
    assert handshake(client, mechanism).error_code == ILLEGAL
    assert is_closed_to_requests(client)


def test_the_last_message_does_not_come_first(client):
    handshake(client)
    assert authenticate(client, b"c=biws,r=nonce,p=AAAA").error_code == REFUSED
    assert is_closed_to_requests(client)


def test_the_first_message_does_not_come_twice(client):
    scram, _ = begun(client)
    assert authenticate(client, scram.first()).error_code == REFUSED
    assert is_closed_to_requests(client)


def test_a_message_of_another_mechanism_is_refused(client):
    begun(client)
    assert authenticate(client, PLAIN_OF_ADMIN).error_code == REFUSED
    assert is_closed_to_requests(client)


def test_the_last_message_does_not_count_twice(client):
    _, final = begun(client)
    assert not authenticate(client, final).error_code
    assert authenticate(client, final).error_code == ILLEGAL
    assert is_closed_to_requests(client)


def test_the_final_message_of_one_connection_is_of_no_use_on_another(broker, client):
    _, final = begun(client)
    with broker.client(LISTENER) as other:
        begun(other)
        assert authenticate(other, final).error_code == REFUSED


def test_a_request_around_a_message_after_a_handshake_of_version_0_is_no_message(client):
    handshake(client, "PLAIN", version=0)
    client.send(frame(2, SaslAuthenticateRequest(auth_bytes=PLAIN_OF_ADMIN), 1))
    client.closed_after_s()


@pytest.mark.parametrize("password", [PASSWORD, "guess"])
def test_what_is_sent_at_once_is_answered_in_order_and_only_after_the_login(client, password):
    frames = [
        frame(1, SaslHandshakeRequest(mechanism="PLAIN"), 1),
        frame(2, SaslAuthenticateRequest(auth_bytes=encode(USER, password)), 2),
        frame(9, MetadataRequest(topics=None), 3),
    ]
    client.send(b"".join(frames))
    client.receive()
    assert (struct.unpack_from(">h", client.receive(), 5) == (0,)) == (password == PASSWORD)
    if password == PASSWORD:
        assert struct.unpack_from(">i", client.receive()) == (3,)
    else:
        with pytest.raises(Closed):
            client.receive()


def test_a_request_between_two_messages_is_not_served(client):
    _, final = begun(client)
    client.send(frame(9, MetadataRequest(topics=None), 1) + frame(2, SaslAuthenticateRequest(auth_bytes=final), 2))
    client.receive()  # its empty answer
    with pytest.raises(Closed):
        client.receive()


def test_a_login_again_within_a_second_of_the_last_is_refused(client):
    assert not log_in(client).error_code
    assert handshake(client).error_code == ILLEGAL
    assert is_closed_to_requests(client)


def test_a_login_that_failed_again_ends_the_session(broker, client):
    """KIP-368: the old principal does not survive a login that failed."""
    log_in(client)
    time.sleep(1.1)  # sooner than a second after the last login it is refused
    handshake(client)
    with_guess = ScramClient(SCRAM_512, USER, "nonce")
    challenge = with_guess.parse_challenge(bytes(authenticate(client, with_guess.first()).auth_bytes))
    assert authenticate(client, with_guess.final(salted_password(SCRAM_512, "guess", *challenge))).error_code == REFUSED
    assert is_closed_to_requests(client)


# Tokens


def test_a_token_of_another_owner_does_not_log_in_again_and_the_own_one_gives_no_tokens(tmp_path):
    settings = {"connections.max.reauth.ms": "60000", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
    with app_with_tokens(tmp_path, **settings) as broker, logged_in(broker, "alice") as alice:
        own = create(alice)
        with logged_in(broker, "bob") as bob:
            others = create(bob)
        with broker.client(LISTENER) as with_token:
            assert not log_in_with(with_token, own.token_id, own.hmac).error_code
            assert create(with_token).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            time.sleep(1.1)
            assert log_in_with(with_token, others.token_id, others.hmac).error_code == REFUSED
            assert is_closed_to_requests(with_token)


@pytest.mark.parametrize("extensions", [",tokenauth=false", "", ",tokenauth=true,tokenauth=true", ",tokenAuth=true"])
def test_a_tokens_password_is_none_of_a_user_or_of_its_owner(tmp_path, extensions):
    with app_with_tokens(tmp_path) as broker, logged_in(broker, "alice") as alice:
        token = create(alice)
        for user in (token.token_id, "alice"):
            with broker.client(LISTENER) as client:
                handshake(client, "SCRAM-SHA-256")
                scram = ScramClient(ScramMechanism.SHA_256, user, "nonce", extensions)
                answer = authenticate(client, scram.first())
                if not answer.error_code:
                    challenge = scram.parse_challenge(bytes(answer.auth_bytes))
                    password = b64encode(token.hmac).decode()
                    final = scram.final(salted_password(ScramMechanism.SHA_256, password, *challenge))
                    answer = authenticate(client, final)
                assert answer.error_code == REFUSED


# Sizes, floods and times


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    "message",
    [
        b"\0" * 500_000,
        b"n,,n=admin,r=nonce," + b",".join(b"%d=x" % number for number in range(60_000)),
        b"n,,n=" + b"=2C" * 150_000 + b",r=nonce",
        b"\0" + b"u" * 400_000 + b"\0p",
    ],
)
def test_a_huge_message_is_refused(client, mechanism, message):
    handshake(client, mechanism)
    assert authenticate(client, message).error_code == REFUSED
    assert is_closed_to_requests(client)


def test_a_flood_of_one_address_does_not_lock_out_another(broker: RunningApp, monkeypatch):
    """Without a fair share for each address the honest login is refused, since a hundred others wait."""
    held, released = threading.Event(), threading.Event()

    def check(*arguments: object) -> bool:
        if arguments[-1] == "guess":
            held.set()
            assert released.wait(WAIT_S)
        return has_password(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(mechanisms, "has_password", check)
    flood = [login_from("127.0.0.1", broker, "guess") for _ in range(LOGIN_CHECKS_MAX + 50)]
    honest: list[socket.socket] = []
    try:
        assert held.wait(WAIT_S)
        eventually(lambda: sum(map(has_ended, flood)) == 50)
        honest += [login_from("127.0.0.2", broker, PASSWORD) for _ in range(2)]
        eventually(lambda: sum(map(has_ended, flood)) == 52)  # the honest logins wait in the place of two others
        released.set()
        for each in honest:
            assert answer_of(each) == 0
    finally:
        released.set()
        for each in (*flood, *honest):
            each.close()


def login_from(source: str, broker: RunningApp, password: str) -> socket.socket:
    """A connection from this address that has sent a login."""
    connection = socket.create_connection(broker.app.addresses[LISTENER], WAIT_S, source_address=(source, 0))
    message = SaslAuthenticateRequest(auth_bytes=encode(USER, password))
    connection.sendall(frame(1, SaslHandshakeRequest(mechanism="PLAIN"), 1))
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size, socket.MSG_WAITALL)
    connection.sendall(frame(2, message, 2))
    return connection


def answer_of(connection: socket.socket) -> int:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    return int(struct.unpack_from(">h", connection.recv(size, socket.MSG_WAITALL), 5)[0])


def has_ended(connection: socket.socket) -> bool:
    """Whether the broker has closed a connection without an answer."""
    if not select.select([connection], [], [], 0)[0]:
        return False
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True


def eventually(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.measures_time
def test_how_long_a_refusal_takes_tells_nothing_about_the_user(broker):
    """A user of the settings, whose password is compared, one of SCRAM, for whom a key is derived, and nobody."""
    took: dict[str, list[float]] = {name: [] for name in ("bob", USER, "nobody")}
    for _ in range(15):
        for name, times in took.items():
            with broker.client(LISTENER) as client:
                handshake(client, "PLAIN")
                started = time.monotonic()
                answer: SaslAuthenticateResponse = authenticate(client, encode(name, "guess"))
                times.append(time.monotonic() - started)
                assert answer.error_code == REFUSED
    medians = sorted(map(median, took.values()))
    assert medians[-1] - medians[0] < 0.002, took  # deriving a key alone takes four milliseconds or more


# Logs


@pytest.mark.parametrize("format_", ["text", "json"])
def test_a_user_name_forges_no_line_of_a_log(tmp_path, caplog, format_):
    forged = "x\n2026-01-01T00:00:00Z INFO flowstone all is well\r\nx\u2028y\x1b[2J"
    with secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0") as app, app.client(LISTENER) as client:
        handshake(client, "PLAIN")
        assert authenticate(client, encode(forged, "guess")).error_code == REFUSED
    (record,) = [each for each in caplog.records if "login from" in each.getMessage()]
    line = FORMATTERS[format_].format(record)
    assert "all is well" in line
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    audited = (tmp_path / "data" / "audit" / "audit.jsonl").read_text(encoding="utf-8")
    assert len(audited.splitlines()) == len([json.loads(each) for each in audited.splitlines()]) == 1
