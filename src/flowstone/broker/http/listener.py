"""The HTTP listener: binding its address, loading the HTTP libraries, starting and stopping.

The address is bound while the broker starts, so that one already in use is reported at once. The libraries (uvicorn,
starlette: 0.1 s) and the pages are loaded in a thread once the broker serves its own clients; connections that are made
before that wait. Knows nothing of the pages' contents: they are declared (`page`).
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from flowstone.broker.authentication.listener_security import pem_of
from flowstone.broker.http.tokens import HttpTokens, read_tokens
from flowstone.broker.network.listeners import check_port, is_number
from flowstone.errors import ConfigError, StartupError
from flowstone.ports import network
from flowstone.ports.pem_source import ClientAuth
from flowstone.ports.tls_contexts import FollowedContext, server_context

if TYPE_CHECKING:
    from flowstone.broker.http.access import HttpAccess
    from flowstone.broker.http.page import Site
    from flowstone.broker.http.routes import HttpServer
    from flowstone.config import BrokerConfig

logger = logging.getLogger(__name__)

OFF = ("", "off")
# The kernel's send buffer of a connection. A small buffer shows the progress of a slow client: with the default of
# several megabytes, minutes can pass before the kernel accepts more.
SEND_BUFFER_BYTES = 64 * 1024


def parse_address(text: str) -> tuple[str, int] | None:
    """Return the host and port of the setting `http.listener`, or None for `off`. Raises ConfigError."""
    if text.lower() in OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not is_number(port):
        raise ConfigError(f"http.listener: {text!r} is not HOST:PORT, or off")
    check_port("http.listener", text, port)
    return host.removeprefix("[").removesuffix("]"), int(port)


def allowed_hosts(
    address: tuple[str, int] | None, listener_hosts: Iterable[str], config: BrokerConfig
) -> HttpAccess | None:
    """Return the hosts that HTTP requests may name, None without an address. Raises ConfigError if one is invalid."""
    if address is None:
        return None
    from flowstone.broker.http.access import HttpAccess

    own = [*listener_hosts, address[0], platform.node()]
    return HttpAccess(filter(None, own), config.http_allowed_hosts)


class HttpListener:
    def __init__(
        self,
        host: str,
        port: int,
        open_site: Callable[[], Site],
        access: HttpAccess,
        config: BrokerConfig | None = None,
    ) -> None:
        """Bind the address, port 0 for any free one. Raises StartupError if that fails.

        `open_site` is called in a thread and may load what it needs. `config` says whether TLS and tokens are needed;
        raises ConfigError or StartupError if their files are unusable.
        """
        self._open_site, self._access = open_site, access
        self._tokens: HttpTokens | None = None
        self._context: FollowedContext | None = None
        if config is not None and config.http_tokens_file:
            self._tokens = read_tokens(config.http_tokens_file)
        if config is not None and config.http_ssl_enable:
            pem = pem_of(config)
            self._context = FollowedContext(pem.files, lambda: server_context(pem, ClientAuth.NONE))
        self._socket = _listen(host, port)
        self.address = _address_text(host, self._socket.getsockname()[1])
        self._opening: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Load the libraries in the background and serve as soon as they are loaded."""
        self._opening = asyncio.ensure_future(self._open())

    async def stop(self) -> None:
        """Let answers under way be completed, for a short time, and close."""
        if self._server is not None:
            await self._server.finish()
        self.kill()

    def kill(self) -> None:
        """Close all connections at once."""
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            self._server.kill()
        self._socket.close()

    async def _open(self) -> None:
        try:
            self._server = await asyncio.to_thread(self._load)
            self._server.open(self._socket)
        except Exception:  # the task is not awaited, and the broker works without these pages
            logger.exception("HTTP is not served on %s", self.address)

    def _load(self) -> HttpServer:
        from flowstone.broker.http.routes import HttpServer

        return HttpServer(self._open_site(), self._access, self._tokens, self._context)


def _listen(host: str, port: int) -> network.Socket:
    try:
        return network.listen(host, port, send_buffer_bytes=SEND_BUFFER_BYTES)
    except OSError as error:
        problem = error.strerror or str(error)
    raise StartupError(
        f"cannot serve HTTP on {_address_text(host, port)}: {problem}; choose another address with --http HOST:PORT "
        "(http.listener), or --http off"
    )


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
