"""Checks of logins that wait for the thread that makes them, with a fair share for each address.

A check is some milliseconds of key derivation or of verifying a signature, and anyone who reaches a listener can ask
for one. Addresses take turns, each with its oldest check, so that a login waits for one check of every other address at
most, however many of them one address has sent. When too many wait, the newest check of the address with the most is
dropped. Checks of connections that are closed are not made.

The addresses of an IPv6 network of 64 bits, which usually belongs to one site, count as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from flowstone.errors import ProtocolError

# Checks that run or wait. A key derivation takes some milliseconds, so the last one waits half a second.
LOGIN_CHECKS_MAX = 100
_IPV6_NETWORK_BITS = 64
_KNOWN_ADDRESSES_MAX = 1_000

T = TypeVar("T")


class Asker(Protocol):
    """The properties of a client's session that decide when its login is checked."""

    @property
    def host(self) -> str: ...

    @property
    def is_closed(self) -> bool: ...


class _Check(NamedTuple):
    function: Callable[[], Any]
    asker: Asker
    checked: asyncio.Future[Any]


class LoginChecks:
    def __init__(self, run: Callable[[Callable[[], Any]], asyncio.Future[Any]]) -> None:
        """Make the checks with `run`, which runs a function in a thread, one after the other."""
        self._run = run
        self._is_running = False
        # The checks that wait, by the network of the client; the order of the networks is that of their turns.
        self._waiting: dict[str, deque[_Check]] = {}
        self._waiting_count = 0

    def add(self, function: Callable[[], T], asker: Asker) -> asyncio.Future[T]:
        """Return the outcome of the check `function`. It fails with ProtocolError if too many checks wait."""
        checked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(network_of(asker.host), deque()).append(_Check(function, asker, checked))
        self._waiting_count += 1
        if self._waiting_count + self._is_running > LOGIN_CHECKS_MAX:
            self._drop_one()
        self._run_next()
        return cast("asyncio.Future[T]", checked)

    def _drop_one(self) -> None:
        """Refuse the newest check of the network with the most of them; of several, the one whose turn is last."""
        network = max(reversed(self._waiting), key=lambda each: len(self._waiting[each]))
        checks = self._waiting[network]
        dropped = checks.pop().checked
        self._waiting_count -= 1
        if not checks:
            del self._waiting[network]
        if not dropped.done():
            dropped.set_exception(ProtocolError(f"{LOGIN_CHECKS_MAX} logins wait to be checked"))

    def _run_next(self) -> None:
        while self._waiting and not self._is_running:
            network = next(iter(self._waiting))
            checks = self._waiting.pop(network)
            check = checks.popleft()
            self._waiting_count -= 1
            if checks:
                self._waiting[network] = checks  # behind the others
            if check.asker.is_closed:
                check.checked.cancel()
            if check.checked.done():
                continue
            self._is_running = True
            self._run(check.function).add_done_callback(partial(self._ran, check.checked))

    def _ran(self, checked: asyncio.Future[Any], ran: asyncio.Future[Any]) -> None:
        self._is_running = False
        if ran.cancelled():
            checked.cancel()
        elif (error := ran.exception()) is not None:
            if not checked.done():
                checked.set_exception(error)
        elif not checked.done():
            checked.set_result(ran.result())
        self._run_next()


@lru_cache(_KNOWN_ADDRESSES_MAX)
def network_of(host: str) -> str:
    """Return the address of an IPv4 client, and the network of an IPv6 client."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> _IPV6_NETWORK_BITS:x}::"
