"""Check of HTTP requests by `Host` and `Origin`: a defence against web pages that reach the broker's port.

A web page can make its visitor's browser send requests to any address that the browser reaches. Two rules prevent harm:

- `Host` must be a name of this broker. A page that points its own domain name at the broker's address (DNS rebinding)
  may read answers, because the browser takes both for one site; but its requests carry that domain name. An IP address
  as `Host` is always allowed: no domain name was resolved, so nothing can have been rebound. Kubernetes probes send
  one.
- A request that may change something (any method but GET, HEAD and OPTIONS) must not come from another site's page:
  `Origin` is the same as `Host` or a host of `http.allowed.hosts`, and `Sec-Fetch-Site`, if the browser sends it, is
  `same-origin` or `none`. Programs that are not browsers send neither header.

Pure: knows no connection and no library.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from flowstone.errors import ConfigError

SETTING = "http.allowed.hosts"
ANY_HOST = "*"
MISDIRECTED, FORBIDDEN = 421, 403
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_ALWAYS_ALLOWED = frozenset({"localhost"})
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
# A refusal quotes at most so many characters of a header.
_QUOTED_CHARACTERS_MAX = 100


class Refusal(NamedTuple):
    status: int
    reason: str


class HttpAccess:
    def __init__(self, own_hosts: Iterable[str], allowed: Collection[str]) -> None:
        """Allow the broker's own host names, and those in `allowed`, the values of `http.allowed.hosts`.

        Raises ConfigError if one of `allowed` is neither a host name nor `*`.
        """
        self._configured = frozenset(map(_parse_setting, allowed))
        self._allows_any = ANY_HOST in self._configured
        self._names = _ALWAYS_ALLOWED | self._configured | {_canonical(host) for host in own_hosts}

    def refusal(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Return why a request with these headers (names in lower case) is refused, or None if it is allowed."""
        found = {name: value.decode("latin-1").strip() for name, value in headers if name in _HEADERS}
        host = found.get(b"host")
        # Only HTTP/1.0 may leave it out, and no browser does.
        if host is not None and not self._is_own(_host_of(host)):
            return Refusal(
                MISDIRECTED,
                f"the request asks for host {_quoted(host)}, which is not a name of this broker; ask by IP address or "
                f"localhost, or add the name to the broker's setting {SETTING}",
            )
        if method in _SAFE_METHODS:
            return None
        origin, site = found.get(b"origin"), found.get(b"sec-fetch-site", "none")
        if (origin is not None and not self._may_change(origin, host)) or site.lower() not in _OWN_SITES:
            sender = _quoted(origin) if origin is not None else "of another site"
            return Refusal(
                FORBIDDEN,
                f"{method} from a web page {sender} is refused: only this broker's own pages may change something; "
                f"a page served under another name needs that name in the broker's setting {SETTING}",
            )
        return None

    def _is_own(self, host: str | None) -> bool:
        if host is None:
            return False
        return self._allows_any or host in self._names or _is_address(host)

    def _may_change(self, origin: str, host: str | None) -> bool:
        """Return whether pages of this origin may change something."""
        scheme, separator, authority = origin.lower().partition("://")
        if scheme not in ("http", "https") or not separator:
            return False
        return authority == (host or "").lower() or _host_of(authority) in self._configured


_HEADERS = frozenset({b"host", b"origin", b"sec-fetch-site"})


def _parse_setting(text: str) -> str:
    host = _canonical(text)
    if host != ANY_HOST and not _NAME.fullmatch(host) and not _is_address(host):
        raise ConfigError(f"{SETTING}: {text!r} is not a host name without scheme and port, nor {ANY_HOST}")
    return host


def _host_of(authority: str) -> str | None:
    """Return the host of `HOST` or `HOST:PORT` in its canonical form, or None for any other text."""
    if authority.startswith("["):
        address, bracket, port = authority[1:].partition("]")
        return _canonical(address) if bracket and _is_port(port) and _is_address(address) else None
    host, colon, port = authority.partition(":")
    return _canonical(host) if host and _is_port(colon + port) else None


def _is_port(text: str) -> bool:
    return not text or (text.startswith(":") and (not text[1:] or (text[1:].isascii() and text[1:].isdecimal())))


def _canonical(host: str) -> str:
    return host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _quoted(text: str) -> str:
    return repr(text[:_QUOTED_CHARACTERS_MAX])
