"""The declaration of an HTTP page: method, path, parameters with bounds, permission, handler and content type.

`pages/page_list.py` lists the declarations. `routes` makes the routes and the answers 400, 404 and 405 from them, and
docs/monitoring.md lists them. Knows no connection and no HTTP library.

Invariant: a handler is given only parameters that its page declares, within their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flowstone.broker.http.callers import NOBODY, Caller
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.permissions import Permission
from flowstone.errors import ApiError, ErrorCode

GET, POST = "GET", "POST"
JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"
OK, ACCEPTED = 200, 202

TOPIC_NAME_CHARACTERS_MAX = 249
# The longest string of Kafka's protocol.
GROUP_ID_CHARACTERS_MAX = 2**15 - 1
_INTEGER_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class Text:
    """A query parameter that is text."""

    name: str
    characters_max: int
    is_required: bool = False

    def parse(self, value: str) -> str:
        """Return the text. Raises ApiError if it is too long."""
        if len(value) > self.characters_max:
            raise _refused(f"{self.name} has more than {self.characters_max} characters")
        return value


@dataclass(frozen=True, slots=True)
class Integer:
    """A query parameter that is a whole number from 0 to `maximum`."""

    name: str
    maximum: int
    is_required: bool = False

    def parse(self, value: str) -> int:
        """Return the number. Raises ApiError if `value` is not a decimal number within the bounds."""
        if not (value.isascii() and value.isdecimal() and len(value) <= _INTEGER_DIGITS_MAX):
            raise _refused(f"{self.name} must be a whole number, not {value[: _INTEGER_DIGITS_MAX + 1]!r}")
        number = int(value)
        if number > self.maximum:
            raise _refused(f"{self.name} must be at most {self.maximum}, not {number}")
        return number


class PageRequest(NamedTuple):
    """A request whose parameters have been checked."""

    parameters: Mapping[str, str | int]
    # The body of a POST.
    body: bytes = b""
    caller: Caller = NOBODY

    def text(self, name: str) -> str | None:
        """Return a parameter that is declared as `Text`, or None if the request does not have it."""
        value = self.parameters.get(name)
        assert value is None or isinstance(value, str)
        return value

    def integer(self, name: str) -> int | None:
        """Return a parameter that is declared as `Integer`, or None if the request does not have it."""
        value = self.parameters.get(name)
        assert value is None or isinstance(value, int)
        return value


class Answer(NamedTuple):
    body: bytes
    status: int = OK


# Sends one event, as `encode_event` returns it, to a stream. An event is encoded once for all streams.
Publish = Callable[[bytes], None]


def encode_event(event: str, document: Mapping[str, Any]) -> bytes:
    """Return a server-sent event; JSON has no line breaks, so one `data` line holds the document."""
    return f"event: {event}\ndata: {json.dumps(document)}\n\n".encode()


# The first argument is the site's context: `pages.page_context.PageContext` in a broker.
Handler = Callable[[Any, PageRequest], Awaitable[Answer]]
# Publishes events while the returned context is entered.
Subscribe = Callable[[Any, PageRequest, Publish], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. A page with `handler` returns a document; a page with `subscribe` streams events.

    Exactly one of the two is given.
    """

    method: str
    path: str
    # The row of the page in the table of docs/monitoring.md.
    summary: str
    # The permissions that a caller needs, as for the corresponding API of Kafka's protocol. Empty: none, as for health
    # probes.
    permissions: tuple[Permission, ...]
    handler: Handler | None = None
    subscribe: Subscribe | None = None
    parameters: Sequence[Text | Integer] = ()
    content_type: str = JSON_TYPE
    # Whether the handler itself checks the permissions for topics and groups whose names are no parameters (`callers`).
    checks_names: bool = False
    # A probe is answered even while the limit of pages being made is reached.
    is_probe: bool = False
    _by_name: Mapping[str, Text | Integer] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert (self.handler is None) != (self.subscribe is None), self.path
        assert self.method == GET or self.subscribe is None, self.path
        object.__setattr__(self, "_by_name", {each.name: each for each in self.parameters})

    def parse(self, query: Mapping[str, str]) -> dict[str, str | int]:
        """Return the declared parameters of a query string; other ones are ignored.

        Raises ApiError if a required parameter is missing or a value is out of bounds.
        """
        missing = [each.name for each in self.parameters if each.is_required and each.name not in query]
        if missing:
            raise _refused(f"the parameter {missing[0]} is missing")
        return {name: self._by_name[name].parse(value) for name, value in query.items() if name in self._by_name}


class Site(NamedTuple):
    """All pages of a listener, and the context that their handlers are given."""

    pages: Sequence[Page]
    context: Any
    # None if no authorizer is configured.
    access: Access | None = None
    # Adds a line to the audit log; None in tests without one.
    audit: Callable[..., None] | None = None


def table_rows(pages: Sequence[Page]) -> Iterator[str]:
    """Yield the rows of the Markdown table of pages, one per page."""
    for page in pages:
        names = ", ".join(f"`{each.name}`" + ("" if each.is_required else " (optional)") for each in page.parameters)
        yield f"| {page.method} | `{page.path}` | {names} | {page.summary} |"


def _refused(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, reason)
