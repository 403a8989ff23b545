"""Logins with tokens: a real client, every way in which a token can be wrong, and keys that change."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.oauthbearer import Expectations, validate
from flowstone.errors import ConfigError, ErrorCode
from flowstone.wire.messages import MetadataRequest
from tests.support.running_app import RunningApp
from tests.support.security.secured import authenticate, handshake, secured_app

ISSUER, AUDIENCE = "https://issuer.example.org", "flowstone"
LISTENER = "SASL_PLAINTEXT"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "other", "use": "sig"})


def token(key: Any = KEY, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 60, "nbf": now - 5, **claims}
    found = {name: value for name, value in found.items() if value is not None}
    return jwt.encode({"alg": alg, "kid": key.kid, **(header or {})}, found, key, algorithms=[alg])


def message(text: str, authorization: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {text}\x01\x01".encode()


def write_keys(path, *keys: Any) -> None:
    path.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))


def settings(directory, **more: str) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory / 'jwks.json'}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        **more,
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("broker")
    write_keys(directory / "jwks.json", KEY)
    return directory


@pytest.fixture(scope="module")
def broker(directory):
    with secured_app(directory, f"{LISTENER}://127.0.0.1:0", **settings(directory)) as running:
        yield running


def log_in(broker: RunningApp, first: bytes) -> tuple[bytes, int, int]:
    """The challenge, the error of the second message, and the session's lifetime."""
    with broker.client(LISTENER) as client:
        assert not handshake(client, "OAUTHBEARER").error_code
        answer = authenticate(client, first)
        if not answer.auth_bytes:
            assert client.ask(9, MetadataRequest(topics=None)).brokers
            return b"", answer.error_code, answer.session_lifetime_ms
        assert not answer.error_code
        refused = authenticate(client, b"\x01")
        client.closed_after_s()
        return bytes(answer.auth_bytes), refused.error_code, 0


def test_a_token_is_a_login_until_it_expires(broker):
    challenge, error, lifetime_ms = log_in(broker, message(token()))
    assert (challenge, error) == (b"", 0)
    assert 50_000 < lifetime_ms <= 60_000


def test_a_real_client_logs_in(broker):
    client = {
        "bootstrap.servers": f"127.0.0.1:{broker.app.addresses[LISTENER][1]}",
        "security.protocol": LISTENER,
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (token(), time.time() + 60),
    }
    producer = Producer(client)
    producer.produce("t", b"x")
    assert producer.flush(10) == 0
    del producer
    admin = AdminClient(client)
    admin.poll(0)
    assert "t" in admin.list_topics(timeout=10).topics


def public_as_secret() -> str:
    """A token signed with the public key as if it were a shared secret."""
    head = urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=")
    signed = head + b"." + token().split(".")[1].encode()
    signature = hmac.digest(KEY.as_pem(private=False), signed, "sha256")
    return (signed + b"." + urlsafe_b64encode(signature).rstrip(b"=")).decode()


def unsigned() -> str:
    return f"eyJhbGciOiJub25lIiwia2lkIjoib25lIn0.{token().split('.')[1]}."


def with_own_key() -> str:
    """A token that brings the key with which it is signed."""
    own = RSAKey.generate_key(2048, {"kid": "one"})
    return token(own, header={"kid": "one", "jwk": own.as_dict(private=False)})


def encoded(header: dict[str, Any] | str, signature: str = "") -> str:
    """A token with this header, and the body and signature of a valid one."""
    text = header if isinstance(header, str) else json.dumps(header)
    _, body, signed = token().split(".")
    return f"{urlsafe_b64encode(text.encode()).rstrip(b'=').decode()}.{body}.{signature or signed}"


CRITICAL = "eyJhbGciOiJSUzI1NiIsImtpZCI6Im9uZSIsImNyaXQiOlsieCJdfQ"  # {"alg":"RS256","kid":"one","crit":["x"]}
LONG = b"n,," + b"\x01" * 500_000 + b"auth=Bearer x\x01\x01"
MALFORMED = [LONG, b"", b"n,,", message(token(), "a=root"), b"n,,\x01\x01", b"\xff", b"p,,\x01auth=Bearer x\x01\x01"]
BAD = {
    "unsigned": unsigned,  # CVE-2026-33557
    "a public key as a secret": public_as_secret,
    "another issuer": lambda: token(iss="https://other.example.org"),
    "no issuer": lambda: token(iss=None),
    "another audience": lambda: token(aud="other"),
    "no audience": lambda: token(aud=None),
    "expired": lambda: token(exp=int(time.time()) - 40),
    "no expiry": lambda: token(exp=None),
    "not yet valid": lambda: token(nbf=int(time.time()) + 40),
    "no user": lambda: token(sub=None),
    "a user that is no text": lambda: token(sub=7),
    "an unknown key": lambda: token(OTHER),
    "the name of another key": lambda: token(OTHER, header={"kid": "one"}),
    "another algorithm's key": lambda: token(ECKey.generate_key("P-256", {"kid": "one"}), "ES256"),
    "its own key": with_own_key,
    "a key to be fetched": lambda: token(OTHER, header={"kid": "one", "jku": "https://evil.example.org/jwks"}),
    "a path as a key": lambda: encoded({"alg": "RS256", "kid": "../../../../dev/null"}),
    "a key's name that is a list": lambda: encoded({"alg": "RS256", "kid": ["one"]}),
    "a key's name that is null": lambda: encoded({"alg": "RS256", "kid": None, "typ": "JWT"}, "AAAA"),
    "two algorithms": lambda: encoded('{"alg":"RS256","kid":"one","alg":"none"}'),
    "an algorithm that is a list": lambda: encoded({"alg": ["RS256"], "kid": "one"}),
    "a deeply nested header": lambda: encoded("[" * 40_000),
    "a header that is a number": lambda: encoded("1" * 5_000),
    "an expiry that is a text": lambda: token(exp="never"),
    "an expiry without end": lambda: token(exp=float("inf")),
    "an expiry that is no number": lambda: token(exp=float("nan")),
    "an expiry beyond all times": lambda: token(exp=10**300),
    "critical fields": lambda: f"{CRITICAL}.{token().partition('.')[2]}",
    "a changed body": lambda: ".".join([token().split(".")[0], token(sub="root").split(".")[1], token().split(".")[2]]),
    "no token": lambda: "",
    "no JWT": lambda: "a.b.c",
    "long": lambda: token(x="x" * 70_000),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_is_told_and_then_refused(broker, kind, caplog):
    bad = BAD[kind]()
    challenge, error, _ = log_in(broker, message(bad))
    assert json.loads(challenge) == {"status": "invalid_token"}
    assert error == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not bad or bad not in caplog.text


def test_a_signature_of_zeros_is_none():
    """CVE-2022-21449: a verifier of ECDSA must not accept r = s = 0."""
    key = ECKey.generate_key("P-256", {"kid": "one"})
    head, body, _ = token(key, "ES256").split(".")
    expected = Expectations(ISSUER, (AUDIENCE,))
    assert validate(token(key, "ES256"), KeySet([key]), expected, int(time.time())).user == "alice"
    for size in (64, 0, 63, 65):
        zeros = urlsafe_b64encode(bytes(size)).rstrip(b"=").decode()
        with pytest.raises(LoginRefused):
            validate(f"{head}.{body}.{zeros}", KeySet([key]), expected, int(time.time()))


@pytest.mark.parametrize("first", MALFORMED)
def test_a_malformed_message_is_refused(broker, first):
    assert log_in(broker, first)[1] == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_little_difference_of_clocks_is_forgiven(broker):
    now = int(time.time())
    assert log_in(broker, message(token(exp=now + 60, nbf=now + 20)))[1] == 0


def test_a_new_key_is_found_once_it_is_needed(tmp_path, monkeypatch):
    write_keys(tmp_path / "jwks.json", KEY)
    monkeypatch.setattr("flowstone.broker.authentication.jwks.UNKNOWN_KEY_INTERVAL_S", 0)
    with secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings(tmp_path)) as broker:
        assert log_in(broker, message(token()))[1] == 0
        assert log_in(broker, message(token(OTHER)))[1] != 0
        write_keys(tmp_path / "jwks.json", KEY, OTHER)
        assert log_in(broker, message(token(OTHER)))[1] == 0
        (tmp_path / "jwks.json").write_text("broken")
        assert log_in(broker, message(token(RSAKey.generate_key(2048, {"kid": "third"}))))[1] != 0
        assert log_in(broker, message(token(OTHER)))[1] == 0  # the former keys stay


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, r"jwks\.endpoint\.url: OAUTHBEARER needs it"),
        ({"sasl.oauthbearer.expected.issuer": ""}, r"expected\.issuer: OAUTHBEARER needs it"),
        ({"sasl.oauthbearer.expected.audience": ""}, r"expected\.audience: OAUTHBEARER needs it"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://example.org/x"}, "expected an https URL"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/jwks"}, "cannot be read: No such file"),
    ],
)
def test_a_broker_does_not_start_without_what_it_must_check(tmp_path, change, complaint):
    write_keys(tmp_path / "jwks.json", KEY)
    app = secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **{**settings(tmp_path), **change})
    with pytest.raises(ConfigError, match=complaint):
        app.__enter__()


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "[1]"])
def test_keys_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "jwks.json").write_text(text)
    with pytest.raises(ConfigError, match=r"not a JWKS|no public keys"):
        secured_app(tmp_path, f"{LISTENER}://127.0.0.1:0", **settings(tmp_path)).__enter__()
