"""Certificates of a small authority of one's own, for `flowstone secure init` and for tests.

Keys are on the curve P-256, which all TLS clients know and whose handshakes cost a fifth of RSA's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 825
# Clocks differ: a certificate is valid a little earlier than now.
BACKDATED = timedelta(hours=1)


class Certified(NamedTuple):
    """A private key and its certificate in PEM form."""

    key: str
    certificate: str

    def __repr__(self) -> str:
        return "Certified()"

    @property
    def pem(self) -> str:
        """The content of a keystore file."""
        return self.key + self.certificate


class Authority:
    """A certificate authority. With its key one can create certificates that all its clients trust."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key, self._certificate = key, certificate

    @classmethod
    def create(cls, name: str = "Flowstone CA") -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        public = key.public_key()
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(subject, subject, public, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, certified: Certified) -> Self:
        """Return the authority with this key. Raises ValueError."""
        key = serialization.load_pem_private_key(certified.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not on an elliptic curve")
        return cls(key, x509.load_pem_x509_certificate(certified.certificate.encode()))

    @property
    def certified(self) -> Certified:
        return Certified(_key_text(self._key), _certificate_text(self._certificate))

    @property
    def certificate(self) -> str:
        return _certificate_text(self._certificate)

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: float = CERTIFICATE_DAYS) -> Certified:
        """Return a new key and certificate, for a server at these hosts or for a client without any."""
        key = ec.generate_private_key(ec.SECP256R1())
        public, authority = key.public_key(), self._key.public_key()
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = (
            _builder(_name(name), self._certificate.subject, public, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(_host, hosts)]), critical=False)
        return Certified(_key_text(key), _certificate_text(builder.sign(self._key, hashes.SHA256())))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _certificate_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
