"""The session of a client connection, which is passed with each of its requests: `ClientSession`.

A connection creates its session when it is accepted, and handlers read it as `context.session`. The client id and the
software are those of the newest request that named them. The principal is the authenticated identity of the client;
without authentication every client is `ANONYMOUS`.

`protocol` is the listener's security protocol; `token_id` that of the delegation token with which the client logged in.

Login: on a listener with SASL, `login` is the state of the client's login. `end` closes the connection once its
requests are answered, after a login that failed.

Throttling: `throttle` mutes the session. A muted connection reads no further requests, since some clients ignore the
throttle time in their responses. Responses to requests that were read before are still sent.

A request's bytes last only until its handler returns, because their buffer is used again. The handler of a large one,
which has a buffer of its own, may keep them (`take_frame`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from flowstone.broker.requests.access import Decisions

# The longest time for which a connection is muted: a request that waits longer than clients' request timeout (30 s by
# default) would only be sent again, over a new connection.
MUTE_MS_MAX = 30_000


class Principal(NamedTuple):
    """The authenticated identity of a client, as access rules name it: `User:alice`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class LoginAnswer(Protocol):
    """The answer to a message of a client's login; a lifetime of 0 has no end."""

    @property
    def challenge(self) -> bytes: ...

    @property
    def lifetime_ms(self) -> int: ...


class Login(Protocol):
    """The login of a connection, of which `broker.authentication.sasl_login` is the implementation."""

    @property
    def mechanisms(self) -> tuple[str, ...]: ...

    def handshake(self, mechanism: str, *, is_raw: bool) -> None: ...

    async def authenticate(self, message: bytes) -> LoginAnswer: ...


class ClientSession:
    """The listener, the client's address and names, its principal, and the end of its mute."""

    __slots__ = (
        "_principal",
        "client_id",
        "decisions",
        "host",
        "is_closed",
        "listener_name",
        "login",
        "muted_until_s",
        "on_closed",
        "on_end",
        "on_muted",
        "own_frame_bytes",
        "peer",
        "protocol",
        "software_name",
        "software_version",
        "token_id",
    )

    def __init__(self, listener_name: str, peer: str, on_muted: Callable[[], None] | None = None) -> None:
        """Create the session of a new connection; `peer` is the client's address, HOST:PORT.

        `on_muted` is called when `muted_until_s` moves.
        """
        self.listener_name, self.peer, self.on_muted = listener_name, peer, on_muted
        self.host = peer.rpartition(":")[0]
        self.client_id: str | None = None  # in the newest request
        self.software_name = self.software_version = ""  # in the newest ApiVersions request
        self._principal = ANONYMOUS
        self.on_closed: list[Callable[[], None]] | None = None  # called when the connection is closed
        self.is_closed = False
        self.login: Login | None = None  # on listeners with SASL
        self.on_end: Callable[[], None] | None = None
        self.protocol, self.token_id = "PLAINTEXT", ""
        # What the authorizer has decided about the principal.
        self.decisions: Decisions | None = None
        self.muted_until_s = 0.0  # in monotonic time; 0 if the session was never muted
        self.own_frame_bytes = 0  # of the request being handled, if it has a buffer of its own

    def take_frame(self, used_bytes: int) -> bool:
        """Return whether the caller, which needs so many bytes of the request being handled, may keep all of them.

        That is possible once, and only for the larger part of a request: who keeps less makes a copy.
        """
        is_taken = 0 < self.own_frame_bytes <= 2 * used_bytes
        if is_taken:
            self.own_frame_bytes = 0
        return is_taken

    def end(self) -> None:
        """Read no further requests, and close the connection once those that were read are answered."""
        if self.on_end is not None:
            self.on_end()

    @property
    def principal(self) -> Principal:
        """The authenticated identity of the client. A new one drops what was decided about the one before."""
        return self._principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self._principal, self.decisions = principal, None

    def throttle_ms(self, now_s: float) -> int:
        """Return for how long the session is still muted, rounded up; 0 if it is not."""
        return max(ceil((self.muted_until_s - now_s) * 1000), 0)

    def throttle(self, now_s: float, throttle_ms: int) -> None:
        """Mute the session for `throttle_ms` from now, or `MUTE_MS_MAX` at most; it is never unmuted sooner."""
        until_s = now_s + min(throttle_ms, MUTE_MS_MAX) / 1000
        if until_s > max(self.muted_until_s, now_s):
            self.muted_until_s = until_s
            if self.on_muted is not None:
                self.on_muted()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection is closed, or at once if it is closed already."""
        if self.is_closed:
            callback()
        elif self.on_closed is None:
            self.on_closed = [callback]
        else:
            self.on_closed.append(callback)

    def closed(self) -> None:
        """Record that the connection is closed."""
        self.is_closed = True
        callbacks, self.on_closed = self.on_closed, None
        for callback in callbacks or ():
            callback()
