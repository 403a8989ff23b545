"""A response that is encoded before it is sent: assembled from parts, or cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowstone.wire.message import Message


class EncodedResponse(Message):
    """The encoded bytes of a response, and the error codes in it."""

    __slots__ = ("chunks", "errors")

    def __init__(self, chunks: Sequence[bytes | memoryview], errors: Counter[int]) -> None:
        self.chunks, self.errors = chunks, errors
