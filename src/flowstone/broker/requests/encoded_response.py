"""A response that is bytes before it is sent: put together from parts, or the same as one before."""

from __future__ import annotations

from collections import Counter

from flowstone.wire.message import Message


class EncodedResponse(Message):
    """What the codec would make of it, and the error codes in it."""

    __slots__ = ("chunks", "errors")

    def __init__(self, chunks: list[bytes], errors: Counter[int]) -> None:
        self.chunks, self.errors = chunks, errors
