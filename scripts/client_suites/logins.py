"""Logins of franz-go and kafkajs over TLS, with every mechanism that each has, to a broker with short sessions.

The other clients log in in `tests/clients/security`. The programs are given what they need as one JSON document.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socket import socket

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from scripts.client_suites import franz_go, kafkajs
from scripts.client_suites.suite import Server, Suite, fresh_server, run, tool

from flowstone.config.properties import format_properties
from flowstone.embedded.security import USER, BrokerSecurity
from flowstone.ports.certificates import Authority
from flowstone.ports.secret_files import write_secret

GO_PROGRAM = Path(__file__).with_name("logins_checks.go")
JS_PROGRAM = Path(__file__).with_name("logins_checks.js")
# Both programs go on for half as long again.
SESSION_MS = 3_000
TOKEN_LIFETIME_S = 600
PROGRAM_TIMEOUT_S = 180
ISSUER, AUDIENCE = "https://issuer.example.org", "flowstone"


def run_franz_go(suite: Suite, _: Server) -> None:
    with tempfile.TemporaryDirectory(prefix="flowstone-franz-go-") as work, secured_broker() as known:
        folder = Path(work, "checks")
        franz_go.build(GO_PROGRAM, folder)
        suite.take_report(run([str(folder / "checks"), known], timeout_s=PROGRAM_TIMEOUT_S))


def run_kafkajs(suite: Suite, _: Server) -> None:
    modules = kafkajs.modules()
    with secured_broker() as known:
        variables = {"NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        suite.take_report(run([tool("node"), str(JS_PROGRAM), known], variables=variables, timeout_s=PROGRAM_TIMEOUT_S))


@contextmanager
def secured_broker() -> Iterator[str]:
    """Start a broker with logins and one that demands certificates; yield how to connect to them, as JSON."""
    with tempfile.TemporaryDirectory(prefix="flowstone-logins-") as folder:
        security = BrokerSecurity("sasl_tls", folder)
        authority = Authority.create("clients")
        issued, trusted = authority.issue("alice"), Path(folder, "clients.pem")
        trusted.write_text(authority.certificate, encoding="ascii")
        own = Path(folder, "alice.pem")  # the key and the certificate
        write_secret(str(own), issued.pem)
        with_logins, with_certificates = _free_port(), _free_port()
        settings = {
            **security.settings,
            **_tokens(folder),
            "listeners": f"SASL_SSL://127.0.0.1:{with_logins},SSL://127.0.0.1:{with_certificates}",
            "advertised.listeners": f"SASL_SSL://localhost:{with_logins},SSL://localhost:{with_certificates}",
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.truststore.location": str(trusted),
            "connections.max.reauth.ms": str(SESSION_MS),
            "delegation.token.secret.key": security.password,
            "group.initial.rebalance.delay.ms": "0",
        }
        config = Path(folder, "server.properties")
        write_secret(str(config), format_properties(settings))
        with fresh_server(config=config):
            yield json.dumps(
                {
                    "Sasl": f"localhost:{with_logins}",
                    "Tls": f"localhost:{with_certificates}",
                    "User": USER,
                    "Password": security.password,
                    "Token": _token(folder),
                    "Authority": security.properties()["ssl.truststore.location"],
                    "Certificate": str(own),
                    "Key": str(own),
                    "SessionMs": SESSION_MS,
                }
            )


def _tokens(folder: str) -> dict[str, str]:
    """Write the key with which tokens are signed; return the settings that name its public part."""
    key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
    Path(folder, "jwks.json").write_text(json.dumps(KeySet([key]).as_dict(private=False)), encoding="ascii")
    write_secret(str(Path(folder, "jwt.key")), key.as_pem(private=True).decode())
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{folder}/jwks.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def _token(folder: str) -> str:
    key = RSAKey.import_key(Path(folder, "jwt.key").read_text(encoding="ascii"))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + TOKEN_LIFETIME_S}
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, key)


def _free_port() -> int:
    with closing(socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
