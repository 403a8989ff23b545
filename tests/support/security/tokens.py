"""A broker with delegation tokens and the users alice, bob and carol, and clients that log in with tokens."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowstone.authentication.plain import encode
from flowstone.authentication.scram import ScramClient, ScramMechanism, salted_password
from flowstone.wire.messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenRequestDescribeDelegationTokenOwner,
    SaslAuthenticateResponse,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import authenticate, handshake, secured_app
from tests.support.wire_client import Client

SECRET = "a secret that all brokers share"
USERS = ("alice", "bob", "carol")
Owner = DescribeDelegationTokenRequestDescribeDelegationTokenOwner
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


def app_with_tokens(directory: Path, **settings: str) -> RunningApp:
    users = " ".join(f'user_{name}="{name}"' for name in USERS)
    settings = {
        "delegation.token.secret.key": SECRET,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{_MODULE} required {users};",
        "connection.failed.authentication.delay.ms": "0",
        **settings,
    }
    return secured_app(directory, LISTENERS, **settings)


@contextmanager
def logged_in(broker: RunningApp, user: str) -> Iterator[Client]:
    """A connection of one of the users."""
    with broker.client("SASL_PLAINTEXT") as client:
        handshake(client, "PLAIN")
        assert authenticate(client, encode(user, user)).error_code == 0
        yield client


def create(client: Client, *renewers: str, version: int = 3, **fields: object) -> CreateDelegationTokenResponse:
    named = [CreateDelegationTokenRequestCreatableRenewers(principal_type="User", principal_name=n) for n in renewers]
    values = {"max_lifetime_ms": -1, **fields}
    answer: CreateDelegationTokenResponse = client.ask(
        version,
        CreateDelegationTokenRequest(renewers=named, **values),  # type: ignore[arg-type]
    )
    return answer


def log_in_with(
    client: Client,
    token_id: str,
    token_hmac: bytes,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    extensions: str = ",tokenauth=true",
) -> SaslAuthenticateResponse:
    """The last response of a login with a token, successful or not."""
    assert not handshake(client, mechanism.sasl_name).error_code
    scram = ScramClient(mechanism, token_id, "nonce", extensions)
    challenge = scram.parse_challenge(bytes(authenticate(client, scram.first()).auth_bytes))
    password = b64encode(token_hmac).decode()
    answer = authenticate(client, scram.final(salted_password(mechanism, password, *challenge)))
    if not answer.error_code:
        scram.check(bytes(answer.auth_bytes))
    return answer


def seen(client: Client, *owners: str, version: int = 3) -> set[str]:
    """The ids of the tokens that a client is told."""
    asked = [Owner(principal_type="User", principal_name=name) for name in owners] if owners else None
    answer = client.ask(version, DescribeDelegationTokenRequest(owners=asked))
    assert answer.error_code == 0
    return {token.token_id for token in answer.tokens}
