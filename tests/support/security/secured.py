"""Brokers with TLS and logins: certificates made on the fly, and the user `admin` with the password `PASSWORD`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from flowstone.authentication.credential_files import format_credentials
from flowstone.authentication.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from flowstone.ports.certificates import Authority
from flowstone.ports.secret_files import write_secret
from flowstone.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

USER, PASSWORD = "admin", "correct horse"
# As many as `flowstone user add` chooses, and not the fewest that are allowed.
SALT, ITERATIONS = b"abcdefghijklmnopqrstuvwxy", 8192
ALL_LISTENERS = ",".join(f"{each}://127.0.0.1:0" for each in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))


@cache
def authority() -> Authority:
    return Authority.create()


@cache
def credential(mechanism: ScramMechanism, password: str = PASSWORD) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, SALT, ITERATIONS), SALT, ITERATIONS)


def write_files(directory: Path) -> dict[str, str]:
    """Write certificates and credentials; return the settings that name them."""
    server = authority().issue("broker", ["localhost", "127.0.0.1"])
    (directory / "server.pem").write_text(server.pem)
    (directory / "ca.pem").write_text(authority().certificate)
    (directory / "client.pem").write_text(authority().issue("alice").pem)
    credentials = {(USER, mechanism): credential(mechanism) for mechanism in ScramMechanism}
    (directory / "credentials").unlink(missing_ok=True)
    write_secret(str(directory / "credentials"), format_credentials(credentials))
    return {
        "ssl.keystore.location": str(directory / "server.pem"),
        "ssl.truststore.location": str(directory / "ca.pem"),
        "scram.credentials.file": str(directory / "credentials"),
    }


def secured_app(directory: Path, listeners: str = ALL_LISTENERS, **settings: str) -> RunningApp:
    """A broker whose files are in `directory`, with all mechanisms and, by default, a listener of each protocol."""
    mechanisms = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    values = {"listeners": listeners, "sasl.enabled.mechanisms": mechanisms, **write_files(directory), **settings}
    return RunningApp(str(directory / "data"), **values)


def client_settings(broker: RunningApp, directory: Path, protocol: str, mechanism: str = "") -> dict[str, Any]:
    """The settings of librdkafka for a listener that has the name of its protocol."""
    settings: dict[str, Any] = {
        "bootstrap.servers": f"localhost:{broker.app.addresses[protocol][1]}",
        "security.protocol": protocol,
        "ssl.ca.location": str(directory / "ca.pem"),
        "log_level": 0,
    }
    if mechanism:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return settings


def handshake(client: Client, mechanism: str = "SCRAM-SHA-512", version: int = 1) -> SaslHandshakeResponse:
    answer: SaslHandshakeResponse = client.ask(version, SaslHandshakeRequest(mechanism=mechanism))
    return answer


def authenticate(client: Client, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = client.ask(version, SaslAuthenticateRequest(auth_bytes=message))
    return answer


def log_in(
    client: Client, user: str = USER, password: str = PASSWORD, nonce: str = "nonce"
) -> SaslAuthenticateResponse:
    """Log in with SCRAM-SHA-512; return the last response, successful or not."""
    mechanism = ScramMechanism.SHA_512
    assert not handshake(client).error_code
    scram = ScramClient(mechanism, user, nonce)
    challenge = scram.parse_challenge(bytes(authenticate(client, scram.first()).auth_bytes))
    salted = salted_password(mechanism, password, challenge.salt, challenge.iterations)
    answer = authenticate(client, scram.final(salted))
    if not answer.error_code:
        scram.check(bytes(answer.auth_bytes))
    return answer
