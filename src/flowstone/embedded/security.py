"""Encryption and logins of an embedded broker: certificates and a user made for it, and what clients connect with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from flowstone.authentication.credential_files import format_credentials
from flowstone.authentication.scram import ITERATIONS_MIN, ScramMechanism, credential_of, salt_text, salted_password
from flowstone.client.security import PLAINTEXT, ClientSecurity
from flowstone.ports.pem_source import PemSource

Security = Literal["none", "tls", "sasl", "sasl_tls"]
PROTOCOLS: Mapping[str, str] = {"none": "PLAINTEXT", "tls": "SSL", "sasl": "SASL_PLAINTEXT", "sasl_tls": "SASL_SSL"}
USER = "flowstone"
MECHANISM = ScramMechanism.SHA_512
PASSWORD_BYTES, SALT_BYTES = 18, 64
_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def check_kind(kind: str) -> None:
    """Raise ValueError if there is no such kind of security."""
    if kind not in PROTOCOLS:
        raise ValueError(f"security is one of {', '.join(map(repr, PROTOCOLS))}, not {kind!r}")


class BrokerSecurity:
    """The security of one broker; its files are in `directory`."""

    def __init__(self, kind: Security, directory: str) -> None:
        """Make the certificates and the user."""
        self.protocol = PROTOCOLS[kind]
        self.settings: dict[str, str] = {}
        self._ca_path = os.path.join(directory, "ca.pem")
        self.password = os.urandom(PASSWORD_BYTES).hex() if "sasl" in kind else ""
        if "tls" in kind:
            self._make_certificates(directory)
        if self.password:
            self._make_user(directory)

    @property
    def client(self) -> ClientSecurity:
        """The security settings of Flowstone's own client."""
        if self.protocol == "PLAINTEXT":
            return PLAINTEXT
        pem = PemSource(truststore_location=self._ca_path) if "SSL" in self.protocol else PemSource()
        return ClientSecurity(self.protocol, MECHANISM.sasl_name, USER, self.password, pem)

    def properties(self) -> dict[str, str]:
        """Return how Kafka's Java clients, Spark and Flowstone's command line connect."""
        properties = {"security.protocol": self.protocol}
        if "SSL" in self.protocol:
            properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self._ca_path}
        if self.password:
            properties["sasl.mechanism"] = MECHANISM.sasl_name
            properties["sasl.jaas.config"] = f'{_JAAS} username="{USER}" password="{self.password}";'
        return properties

    def librdkafka(self) -> dict[str, Any]:
        """Return how confluent-kafka connects."""
        return dict(self.client.librdkafka())

    def _make_certificates(self, directory: str) -> None:
        from flowstone.ports.certificates import Authority
        from flowstone.ports.secret_files import write_secret

        authority = Authority.create()
        server = os.path.join(directory, "server.pem")
        write_secret(self._ca_path, authority.certificate)
        write_secret(server, authority.issue("flowstone", ["localhost", "127.0.0.1"]).pem)
        self.settings |= {"ssl.keystore.location": server, "ssl.truststore.location": self._ca_path}

    def _make_user(self, directory: str) -> None:
        from flowstone.ports.secret_files import write_secret

        salt = salt_text(os.urandom(SALT_BYTES))
        credentials = {}
        for mechanism in ScramMechanism:
            salted = salted_password(mechanism, self.password, salt, ITERATIONS_MIN)
            credentials[USER, mechanism] = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
        path = os.path.join(directory, "users.scram")
        write_secret(path, format_credentials(credentials))
        mechanisms = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"
        self.settings |= {"scram.credentials.file": path, "sasl.enabled.mechanisms": mechanisms}
