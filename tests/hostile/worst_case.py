"""One expensive request: how it is made, and how large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    name: str
    version: int
    make: Callable[[int], Any]
    # Elements in the quick search, and in the long one.
    quick: int = 20_000
    full: int = 100_000
