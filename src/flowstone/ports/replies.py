"""A response that a flush thread sends itself when the records that it acknowledges are on disk.

Until it is sent, the event loop may respond differently or close the connection. It calls `settle` first, after which
the thread sends nothing.
"""

from __future__ import annotations

from typing import Protocol


class Lender(Protocol):
    """The owner of the sync threads to which a reply is attached."""

    def take_back(self, ticket: int) -> int:
        """Detach the reply; return how many of its bytes were sent."""
        ...

    def look(self) -> None:
        """Take the available results without waiting for a wake-up."""
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
        """Take available results, so that the event loop knows about a sent reply before it handles other requests."""
        if self._lender is not None:
            self._lender.look()

    def settle(self) -> bytes | None:
        """Return the unsent rest of the response, or None if nothing was sent and another may be sent instead."""
        if self._lender is not None:
            self.came_back(self._lender.take_back(self._ticket))
        return self.data[self._sent_bytes :] if self._sent_bytes else None
