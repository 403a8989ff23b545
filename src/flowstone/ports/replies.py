"""An answer that a flush thread sends by itself, once what it answers is on disk.

The loop may answer in another way as long as it was not sent, or close the connection: it asks `settle` first, and the
thread sends nothing after that.
"""

from __future__ import annotations

from typing import Protocol


class Lender(Protocol):
    """Who has lent a reply to its threads."""

    def take_back(self, ticket: int) -> int:
        """How many bytes of it were sent; no more will be."""
        ...

    def look(self) -> None:
        """Takes the outcomes that there are, without having been woken up."""
        ...


class Reply:
    __slots__ = ("_lender", "_sent_bytes", "_ticket", "data", "socket")

    def __init__(self, socket: int, data: bytes) -> None:
        """`socket` is a descriptor that stays open until the reply is settled."""
        self.socket, self.data = socket, data
        self._sent_bytes = 0
        self._lender: Lender | None = None
        self._ticket = 0

    def lent(self, lender: Lender, ticket: int) -> None:
        self._lender, self._ticket = lender, ticket

    def came_back(self, sent_bytes: int) -> None:
        self._lender, self._sent_bytes = None, sent_bytes

    def look(self) -> None:
        """What it answers may be done: whoever got it must not meet a loop that does not know."""
        if self._lender is not None:
            self._lender.look()

    def settle(self) -> bytes | None:
        """What is left to send of it; None if nothing of it was sent, and something else may be."""
        if self._lender is not None:
            self.came_back(self._lender.take_back(self._ticket))
        return self.data[self._sent_bytes :] if self._sent_bytes else None
