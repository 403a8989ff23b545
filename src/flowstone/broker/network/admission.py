"""Admission of connections: the TLS handshake, and the login gate before requests are accepted.

There is an `Admission` for each listener with TLS or SASL. Handshakes in progress count as connections. Those that take
longer than `connection.login.timeout.ms` are closed, and so are connections that have not logged in by then. Handshakes
and logins run in turns: however many there are, one iteration of the loop spends no more than a time slice on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from secrets import token_bytes
from ssl import SSLEOFError
from typing import TYPE_CHECKING, Protocol

from flowstone.authentication.distinguished_names import subject_of
from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.invented_credentials import InventedCredentials
from flowstone.broker.authentication.failed_logins import FailedLogins
from flowstone.broker.authentication.jwks import TokenVerifier, token_verifier
from flowstone.broker.authentication.listener_security import ListenerSecurity
from flowstone.broker.authentication.mechanisms import Credentials
from flowstone.broker.authentication.sasl_login import LOGIN, USER_TYPE, SaslLogin
from flowstone.broker.network.login_gate import LOGIN_FRAME_BYTES_MAX, LoginGate
from flowstone.broker.network.receive_buffers import BufferPool
from flowstone.broker.requests.audit import LOGIN_FAILED, client_fields
from flowstone.broker.requests.context import Services
from flowstone.broker.requests.session import Principal
from flowstone.ports.loops import ReadingInTurns, Turns
from flowstone.ports.network import Channel
from flowstone.ports.tls import TlsChannel, secure

if TYPE_CHECKING:
    from flowstone.broker.network.connection import Connection

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
# Memory for incomplete frames of all clients of a listener that are not logged in yet.
LOGIN_BUFFERS_BYTES_MAX = 8 << 20
# OpenSSL's reasons why a handshake fails because of the client's certificate: a login that failed.
_REFUSED_CERTIFICATES = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")


class Door(Protocol):
    """The parts of the server that an admission uses."""

    @property
    def strangers(self) -> Turns:
        """Return the turns of handshakes and logins."""
        ...

    @property
    def encrypted_sends(self) -> Turns:
        """Return the turns of long responses over TLS."""
        ...

    def open(self, channel: Channel, listener_name: str, admit: Callable[[Connection], None] | None = None) -> None: ...

    def leave(self, host: str) -> None: ...


class Admission:
    def __init__(self, security: ListenerSecurity, services: Services, door: Door) -> None:
        """Create the admission of one listener. Raises ConfigError if its key or certificates are unusable."""
        self._security, self._clock, self._door = security, services.clock, door
        self._audit, self._failed = services.audit, FailedLogins(services.clock)
        # Strangers share this memory, so that they take none from clients that are logged in.
        self._buffers = BufferPool(LOGIN_BUFFERS_BYTES_MAX)
        self._buffers_after_login: BufferPool | None = None
        self._request_bytes_max = services.config.socket_request_max_bytes
        self._timeout_s = services.config.connection_login_timeout_ms / 1000
        self._context = security.server_context() if security.has_tls else None
        # As long as the cluster has no credential, and so no secret.
        own_secret = token_bytes(SECRET_BYTES)
        metadata = services.metadata
        self._credentials = Credentials(
            lambda: metadata.image.scram_credentials,
            InventedCredentials(
                lambda: metadata.image.scram_credentials, lambda: metadata.image.scram_secret or own_secret
            ),
            services.workers,
            self._tokens(services) if "OAUTHBEARER" in security.mechanisms else None,
            services.delegation_tokens,
        )
        # When each began, in order of time.
        self._handshakes: dict[TlsChannel, float] = {}
        self._logins: dict[Connection, float] = {}

    @staticmethod
    def _tokens(services: Services) -> TokenVerifier:
        return token_verifier(services.config, services.workers, services.clock)

    @property
    def handshake_count(self) -> int:
        return len(self._handshakes)

    def accept(self, channel: Channel) -> None:
        """Admit a connection that was accepted. Raises OSError if it is broken already."""
        if self._context is None:
            self._door.open(channel, self._security.name, partial(self._admit, None))
            return
        self._context.refresh()
        try:
            tls = secure(channel, self._context.current, self._door.strangers, self._door.encrypted_sends)
        except OSError:
            self._door.leave(_host(channel))
            raise
        self._handshakes[tls] = self._clock.monotonic()
        tls.handshake(partial(self._shaken, tls))

    def sweep(self, now: float) -> None:
        """Close what has taken too long, and report changed certificates also while nobody connects."""
        late = now - self._timeout_s
        for tls, began in tuple(self._handshakes.items()):
            if began > late:
                break
            self._fail(tls, "the TLS handshake was not complete within connection.login.timeout.ms")
        for connection, began in tuple(self._logins.items()):
            if began > late:
                break
            connection.close("the client did not log in within connection.login.timeout.ms")
        if self._context is not None:
            self._context.refresh()

    def close(self) -> None:
        """Close the connections whose handshake is not complete."""
        for tls in tuple(self._handshakes):
            self._fail(tls, "the broker is stopping")

    def _shaken(self, tls: TlsChannel, error: Exception | None) -> None:
        if error is not None:
            if (reason := getattr(error, "reason", None)) in _REFUSED_CERTIFICATES:
                self._note_refused(tls, str(reason))
            # A client that only tries whether the port is open sends nothing.
            level = logging.DEBUG if isinstance(error, ConnectionError | SSLEOFError) else logging.INFO
            self._fail(tls, str(getattr(error, "reason", None) or error), level)
            return
        try:
            user = self._certified_user(tls)
        except LoginRefused as refused:
            self._note_refused(tls, str(refused))
            self._fail(tls, str(refused))
            return
        del self._handshakes[tls]
        self._door.open(tls, self._security.name, partial(self._admit, user))

    def _fail(self, tls: TlsChannel, reason: str, level: int = logging.INFO) -> None:
        told = "TLS handshake with %s on listener %s failed: %s"
        if level == logging.DEBUG:
            logger.debug(told, tls.peer, self._security.name, reason)
        else:
            kind = f"TLS handshakes ({reason})"  # the reasons are OpenSSL's and ours, so they are few
            self._failed.note(tls.peer, kind, level, told, tls.peer, self._security.name, reason)
        del self._handshakes[tls]
        tls.close()
        self._door.leave(_host(tls))

    def _note_refused(self, tls: TlsChannel, reason: str) -> None:
        """Add a line to the audit log about a client whose certificate is no login."""
        fields = {"host": _host(tls), "listener": self._security.name, "mechanism": "SSL"}
        self._audit(LOGIN_FAILED, **fields, reason=reason)

    def _certified_user(self, tls: TlsChannel) -> str | None:
        """Return the user that the client's certificate names, or None if it has none. Raises LoginRefused."""
        certificate = None if self._security.has_sasl else tls.peer_certificate
        if not certificate:
            return None
        try:
            name = subject_of(certificate)
        except ValueError as error:
            raise LoginRefused(f"the certificate names no user: {error}") from None
        user = self._security.mapping.user_of(name)
        if user is None:
            raise LoginRefused(f"no rule of ssl.principal.mapping.rules applies to {name!r}")
        return user

    def _admit(self, user: str | None, connection: Connection) -> None:
        session = connection.session
        session.protocol = self._security.protocol
        if user is not None:
            session.principal = Principal(USER_TYPE, user)
            self._audit(LOGIN, **client_fields(session), mechanism="SSL")
        if not self._security.has_sasl:
            return
        reading = ReadingInTurns(connection.on_readable, self._door.strangers)
        connection.on_readable = reading.on_readable
        logged_in = partial(self._logged_in, connection, reading)
        login = SaslLogin(self._security, self._credentials, self._clock, session, logged_in, self._audit, self._failed)
        connection.request_bytes_max = min(LOGIN_FRAME_BYTES_MAX, self._request_bytes_max)
        self._buffers_after_login, connection.buffers = connection.buffers, self._buffers
        connection.answer = LoginGate(login, connection.answer, self._clock).answer
        session.login, session.on_end = login, connection.finish
        self._logins[connection] = self._clock.monotonic()

    def note_closed(self, connection: Connection, reason: str) -> bool:
        """Log why a connection without a login is closed; return False if it has logged in, or need not."""
        if connection not in self._logins:
            return False
        peer, kind = connection.session.peer, f"connections before the login ({reason})"
        self._failed.note(peer, kind, logging.WARNING, "connection from %s closed: %s", peer, reason)
        return True

    def forget(self, connection: Connection) -> None:
        """Record that the connection is closed."""
        self._logins.pop(connection, None)

    def _logged_in(self, connection: Connection, reading: ReadingInTurns) -> None:
        connection.on_readable = reading.end()
        connection.request_bytes_max = self._request_bytes_max
        if self._buffers_after_login is not None:
            connection.buffers = self._buffers_after_login
        self._logins.pop(connection, None)


def _host(channel: Channel) -> str:
    return channel.peer.rpartition(":")[0]
