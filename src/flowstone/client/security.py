"""Client properties for encryption and login, by Kafka's names, also from a properties file.

`default_security` is what connections use that are given nothing else: a command sets it once for its process. Secrets
are in no `repr`, so that no log, plan or error shows them.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from flowstone.authentication.delegation_tokens import TOKEN_EXTENSION
from flowstone.authentication.jaas import parse_jaas
from flowstone.errors import ConfigError
from flowstone.ports.pem_source import PemSource
from flowstone.ports.tls_contexts import client_context

SERVERS = "bootstrap.servers"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Kafka's names, and librdkafka's names of the same properties.
_SYNONYMS = {
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "sasl.mechanisms": "sasl.mechanism",
}
PROPERTIES = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        *_SYNONYMS,
    }
)
_PEM_BLOCK = re.compile(r"-----BEGIN (?P<kind>[A-Z ]+)-----.*?-----END (?P=kind)-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    pem: PemSource = field(default_factory=PemSource)
    checks_host: bool = True
    # The user is the id of a delegation token.
    is_token: bool = False

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def tls_context(self) -> ssl.SSLContext:
        """Return a TLS context for one connection. Raises ConfigError if a file is missing or is not a certificate."""
        return client_context(self.pem, checks_host=self.checks_host)

    def librdkafka(self) -> dict[str, str]:
        """Return the properties of librdkafka that mean the same.

        Raises ConfigError if a file is missing, and for a delegation token, with which librdkafka cannot log in.
        """
        if self.is_token:
            raise ConfigError(
                "sasl.jaas.config: this command connects with librdkafka, which cannot log in with a delegation token "
                "(tokenauth): log in with a user's password, or use the token with Spark or a Java client"
            )
        settings = {"security.protocol": self.protocol}
        if self.has_sasl:
            login = {"sasl.mechanism": self.mechanism, "sasl.username": self.username, "sasl.password": self.password}
            settings |= login
        if self.has_tls:
            settings |= self._librdkafka_tls()
        return settings if self.protocol != "PLAINTEXT" else {}

    def _librdkafka_tls(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        if not self.checks_host:
            settings["ssl.endpoint.identification.algorithm"] = "none"
        trusted = self.pem.trusted_text()
        if trusted:
            settings["ssl.ca.pem"] = trusted
        if self.pem.has_key:
            blocks = {match["kind"]: match[0] for match in _PEM_BLOCK.finditer(self.pem.key_text())}
            certificates = [
                match[0] for match in _PEM_BLOCK.finditer(self.pem.key_text()) if match["kind"] == "CERTIFICATE"
            ]
            keys = [text for kind, text in blocks.items() if kind.endswith("PRIVATE KEY")]
            settings |= {"ssl.key.pem": "\n".join(keys), "ssl.certificate.pem": "\n".join(certificates)}
            if self.pem.key_password:
                settings["ssl.key.password"] = self.pem.key_password
        return settings


class SecuredBootstrap(str):
    """The address of brokers, HOST:PORT or several with commas, and how to connect to them.

    Two are equal only if both are, so that no connection is shared between users. Shows no secret.
    """

    security: ClientSecurity

    def __new__(cls, text: str, security: ClientSecurity) -> Self:
        made = super().__new__(cls, text)
        made.security = security
        return made

    def __getnewargs__(self) -> tuple[str, ClientSecurity]:  # type: ignore[override]
        return str(self), self.security

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecuredBootstrap) and str(self) == str(other) and self.security == other.security

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self), self.security))


PLAINTEXT = ClientSecurity()
_default = PLAINTEXT


def default_security() -> ClientSecurity:
    return _default


def set_default_security(security: ClientSecurity) -> None:
    """Use `security` for connections of this process that are given no other."""
    global _default
    _default = security


def security_of(bootstrap: str) -> ClientSecurity:
    """Return the security that comes with the address, or else that of the process."""
    return bootstrap.security if isinstance(bootstrap, SecuredBootstrap) else _default


def unknown_properties(names: Iterable[str]) -> list[str]:
    """Return the names that look like security properties and are none that this client has."""
    return [name for name in names if name.startswith(("ssl.", "sasl.", "security.")) and name not in PROPERTIES]


def parse_security(properties: Mapping[str, str]) -> ClientSecurity:
    """Return the security that the properties mean; others are ignored. Raises ConfigError, without any secret."""
    unknown = unknown_properties(properties)
    if unknown:
        raise ConfigError(f"{unknown[0]}: this client has no such property: it has {', '.join(sorted(PROPERTIES))}")
    values = {_SYNONYMS.get(name, name): value for name, value in properties.items()}
    if values and "security.protocol" not in values and any(name.startswith(("sasl.", "ssl.")) for name in values):
        name = next(name for name in properties if name.startswith(("sasl.", "ssl.")))
        raise ConfigError(f"security.protocol: {name} needs one of {', '.join(PROTOCOLS[1:])} here")
    protocol = values.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol: {protocol!r} is not one of {', '.join(PROTOCOLS)}")
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if values.get(name, "PEM").upper() != "PEM":
            raise ConfigError(f"{name}: only PEM is supported; convert the store with `keytool` and `openssl pkcs12`")
    algorithm = values.get("ssl.endpoint.identification.algorithm", "https")
    versions = [each.strip() for each in values.get("ssl.enabled.protocols", "").split(",") if each.strip()]
    pem = PemSource(
        keystore_location=values.get("ssl.keystore.location", ""),
        key=values.get("ssl.keystore.key", ""),
        certificate_chain=values.get("ssl.keystore.certificate.chain", ""),
        key_password=values.get("ssl.key.password", ""),
        truststore_location=values.get("ssl.truststore.location", ""),
        trusted_certificates=values.get("ssl.truststore.certificates", ""),
        **({"versions": tuple(versions)} if versions else {}),
    )
    security = ClientSecurity(protocol, pem=pem, checks_host=algorithm.lower() == "https")
    return _with_login(security, values) if security.has_sasl else security


def _with_login(security: ClientSecurity, values: Mapping[str, str]) -> ClientSecurity:
    """Return the security with user, password and mechanism."""
    mechanism = values.get("sasl.mechanism", "").upper()
    if mechanism not in MECHANISMS:
        raise ConfigError(f"sasl.mechanism: {mechanism!r} is not one of {', '.join(MECHANISMS)}")
    jaas = parse_jaas(values.get("sasl.jaas.config", ""))
    user = values.get("sasl.username") or jaas.username
    password = values.get("sasl.password") or jaas.password
    if not user or not password:
        raise ConfigError(
            "sasl.jaas.config: a login needs a user and a password, in sasl.jaas.config or in sasl.username and "
            "sasl.password"
        )
    is_token = jaas.options.get(TOKEN_EXTENSION, "").lower() == "true"
    if is_token and not mechanism.startswith("SCRAM"):
        raise ConfigError(f"sasl.mechanism: a delegation token needs SCRAM-SHA-256 or SCRAM-SHA-512, not {mechanism}")
    return replace(security, mechanism=mechanism, username=user, password=password, is_token=is_token)


# Properties files


def read_properties(path: str) -> dict[str, str]:
    """Return the properties in a file. Raises ConfigError, without their values, if it is unusable."""
    # Its package has all settings of brokers, whose tables take longer to build than everything else that is imported.
    from flowstone.config.properties import parse_properties

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"cannot read the properties file {path}: {reason}") from None
    try:
        values = parse_properties(text, path)
    except ConfigError:
        raise ConfigError(f"{path}: a line is not name=value") from None
    check_properties(values, path)
    return values


def check_properties(values: Mapping[str, str], source: str) -> ClientSecurity:
    """Return what the properties say. Raises ConfigError if one is unknown or does not fit the others."""
    unknown = unknown_properties(values)
    if unknown:
        raise ConfigError(f"{source}: {unknown[0]} is not a property of this client; see docs/security.md")
    try:
        return parse_security(values)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def secured_by(path: str, bootstrap: str) -> SecuredBootstrap:
    """Return the address with the security of the file. Raises ConfigError if it is unusable."""
    return SecuredBootstrap(bootstrap, check_properties(read_properties(path), path))
