"""Requests to the coordinator of a group or of a transactional id, which is found first and remembered."""

from __future__ import annotations

from enum import IntEnum

from flowstone.client.brokers import Brokers
from flowstone.client.connection import Address
from flowstone.client.errors import Disconnected, LeaderMoved, Retriable, refusal
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.wire_session import Response
from flowstone.wire.message import Message
from flowstone.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse


class CoordinatorKind(IntEnum):
    """The kinds of keys that coordinators serve; the value is FindCoordinator's key type."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """The coordinators of one kind that this client has asked, by group or transactional id."""

    def __init__(self, brokers: Brokers, kind: CoordinatorKind) -> None:
        self._brokers, self._kind = brokers, kind
        self._addresses: dict[str, Address] = {}

    def ask(self, key: str, request: Message, kind: type[Response], deadline: RetryDeadline) -> Response:
        """Return the coordinator's response, whose error codes the caller checks. Raises Retriable, or ClientError."""
        address = self._addresses.get(key)
        if address is None:
            address = self._addresses[key] = self._find(key, deadline)
        return self._brokers.ask(address, request, kind, deadline.left_s)

    def retry_after(self, key: str, error: Retriable, deadline: RetryDeadline) -> None:
        """Wait before the next attempt, which looks for the coordinator again if it moved. Raises GaveUp."""
        if isinstance(error, LeaderMoved | Disconnected):
            self._addresses.pop(key, None)
        deadline.wait(error)

    def _find(self, key: str, deadline: RetryDeadline) -> Address:
        request = FindCoordinatorRequest(key_type=self._kind, coordinator_keys=[key])
        what = f"{'group' if self._kind is CoordinatorKind.GROUP else 'transactional id'} {key}"
        for found in self._brokers.ask_any(request, FindCoordinatorResponse, deadline.left_s).coordinators:
            check(found.error_code, what, found.error_message)
            return Address(found.host, found.port)
        raise Retriable(f"nobody coordinates {what} for now")


def check(code: int, what: object, message: str | None = None) -> None:
    """Raise the error of a response if it has one; `what` it concerns begins the sentence."""
    if code:
        raise refusal(code, what, message)
