"""One expensive request: how it is made, how large, and what stands in it for ids that only the broker knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

WIDE = "wide"
# Stands for the id of the topic `WIDE`, which differs from run to run.
WIDE_ID = b"\xffthe wide topic\xff"
ID_BYTES = 16


class Case(NamedTuple):
    name: str
    version: int
    make: Callable[[int], Any]
    # Elements in the quick search, and in the long one.
    quick: int = 20_000
    full: int = 100_000


def topic_id(name: str) -> bytes:
    """The id by which newer versions name the topic: of no topic but for `WIDE`."""
    return WIDE_ID if name == WIDE else name.encode().rjust(ID_BYTES, b"\1")
