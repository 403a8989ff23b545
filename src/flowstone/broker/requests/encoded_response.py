"""A response that is bytes before it is sent: put together from parts, or the same as one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowstone.wire.message import Message


class EncodedResponse(Message):
    """The bytes that the codec would make of the response, and the error codes in it."""

    __slots__ = ("chunks", "errors")

    def __init__(self, chunks: Sequence[bytes | memoryview], errors: Counter[int]) -> None:
        self.chunks, self.errors = chunks, errors
