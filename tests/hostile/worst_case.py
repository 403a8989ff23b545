"""One expensive request: how it is made, and how large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Request(NamedTuple):
    version: int
    body: Any


class Case(NamedTuple):
    name: str
    version: int
    make: Callable[[int], Any]
    # Elements in the quick search, and in the long one.
    quick: int = 20_000
    full: int = 100_000
    # Requests that undo what the case's request has changed: without them, a second try would have less to do.
    undone_by: Callable[[int], Sequence[Request]] = lambda count: ()
