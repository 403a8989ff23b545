"""Sources of a key, its certificates and trusted certificates: `PemSource`, by the names of Kafka's settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from flowstone.errors import ConfigError

TLS_VERSION_NAMES = ("TLSv1.2", "TLSv1.3")


class ClientAuth(Enum):
    """The values of `ssl.client.auth`: whether a server asks clients for a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class PemSource:
    """Keys and certificates in files, or in the settings themselves."""

    keystore_location: str = ""
    key: str = field(default="", repr=False)
    certificate_chain: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    truststore_location: str = ""
    trusted_certificates: str = field(default="", repr=False)
    versions: tuple[str, ...] = TLS_VERSION_NAMES
    cipher_suites: tuple[str, ...] = ()

    @property
    def has_key(self) -> bool:
        return bool(self.keystore_location or self.key)

    @property
    def has_trust(self) -> bool:
        return bool(self.truststore_location or self.trusted_certificates)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.keystore_location, self.truststore_location)))

    @property
    def key_setting(self) -> str:
        return "ssl.keystore.location" if self.keystore_location else "ssl.keystore.key"

    @property
    def trust_setting(self) -> str:
        return "ssl.truststore.location" if self.truststore_location else "ssl.truststore.certificates"

    def key_text(self) -> str:
        """Return the private key and its certificates. Raises ConfigError if the file cannot be read."""
        if self.keystore_location:
            return _read(self.key_setting, self.keystore_location)
        return f"{self.key}\n{self.certificate_chain}"

    def trusted_text(self) -> str:
        """Return the trusted certificates, "" without any. Raises ConfigError if the file cannot be read."""
        if self.truststore_location:
            return _read(self.trust_setting, self.truststore_location)
        return self.trusted_certificates


def _read(setting: str, path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{setting}: {path} cannot be read: {error.strerror or error}") from None
