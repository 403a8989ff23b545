"""TLS contexts from PEM files or PEM text, and contexts that follow their files.

A server's context is replaced, never changed: a
loaded trust store could only grow. Connections keep the context that they began with.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowstone.errors import ConfigError
from flowstone.ports.pem_source import ClientAuth, PemSource

logger = logging.getLogger(__name__)

TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_KEY_MARK, _CERTIFICATE_MARK = "PRIVATE KEY-----", "-----BEGIN CERTIFICATE-----"


_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def server_context(source: PemSource, client_auth: ClientAuth) -> ssl.SSLContext:
    """Return a context for accepted connections. Raises ConfigError if the key or a certificate is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if not source.has_key:
        raise ConfigError(
            "ssl.keystore.location: a listener with TLS needs a key and its certificate, in one PEM file; "
            "`flowstone secure init DIR` creates them"
        )
    _configure(context, source)
    if client_auth is not ClientAuth.NONE and not source.has_trust:
        raise ConfigError(
            f"ssl.client.auth={client_auth.value} needs ssl.truststore.location, a PEM file with the certificates of "
            "the authorities that sign clients' certificates"
        )
    context.verify_mode = _VERIFY_MODES[client_auth]
    return context


def client_context(source: PemSource, *, checks_host: bool = True) -> ssl.SSLContext:
    """Return a context for connections to servers; without a trust store the system's authorities are trusted.

    Raises ConfigError if the key or a certificate is unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_host
    _configure(context, source)
    if not source.has_trust:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _configure(context: ssl.SSLContext, source: PemSource) -> None:
    unknown = [each for each in source.versions if each not in TLS_VERSIONS]
    if unknown or not source.versions:
        raise ConfigError(f"ssl.enabled.protocols: choose from {', '.join(TLS_VERSIONS)}, not {', '.join(unknown)}")
    versions = sorted(TLS_VERSIONS[each] for each in source.versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    ciphers = [_openssl_name(each) for each in source.cipher_suites if not each.startswith(("TLS_AES", "TLS_CHACHA"))]
    if ciphers:
        try:
            context.set_ciphers(":".join(ciphers))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(source.cipher_suites)}") from None
    if source.has_key:
        _load_key(context, source)
    if source.has_trust:
        _load_trust(context, source)


def _load_key(context: ssl.SSLContext, source: PemSource) -> None:
    setting, text = source.key_setting, source.key_text()
    if _KEY_MARK not in text or _CERTIFICATE_MARK not in text:
        raise ConfigError(
            f"{setting}: expected a private key and a certificate in PEM form, in one file"
            + ("" if source.keystore_location else ", or ssl.keystore.key and ssl.keystore.certificate.chain")
        )
    try:
        with _as_file(text) as path:
            context.load_cert_chain(path, password=source.key_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"{setting}: the key and the certificate cannot be loaded ({reason}); see that they belong together, and "
            "that ssl.key.password is right if the key is encrypted"
        ) from None


def _load_trust(context: ssl.SSLContext, source: PemSource) -> None:
    setting, text = source.trust_setting, source.trusted_text()
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(f"{setting}: no certificates in PEM form can be loaded ({reason})") from None


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield a path with this content, since OpenSSL loads a key from files only; on Linux it is on no disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode("ascii", "replace"))
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="ascii", errors="replace") as file:
        file.write(text)
        file.flush()
        yield file.name


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher suite that is given by the name in Java and the standards."""
    if not suite.startswith("TLS_"):
        return suite
    name = suite.removeprefix("TLS_").replace("_WITH_", "-").replace("AES_", "AES").replace("_", "-")
    return name.replace("CHACHA20-POLY1305-SHA256", "CHACHA20-POLY1305").removeprefix("RSA-")


class FollowedContext:
    """A TLS context that is recreated when one of its files changes."""

    def __init__(self, files: tuple[str, ...], make: Callable[[], ssl.SSLContext]) -> None:
        """Make the context. Raises ConfigError if that fails; later the former one then stays in use."""
        self._files, self._make = files, make
        self._stamps = self._read_stamps()
        self.current = make()

    def refresh(self) -> bool:
        """Make the context again if a file has changed; return whether it was replaced."""
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.current = self._make()
        except ConfigError as error:
            logger.error("the changed certificates cannot be used, and the previous ones stay in use: %s", error)
            return False
        logger.info("certificates were read again: %s", ", ".join(self._files))
        return True

    def _read_stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
