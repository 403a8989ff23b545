"""Requests of these commands to any broker, and the error messages if it refuses."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TypeVar

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, check_reachable
from flowstone.cli.common.errors import CommandError, refused
from flowstone.client import ClientError
from flowstone.client.brokers import Brokers
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message

CLIENT_ID = "flowstone-cli"

Response = TypeVar("Response", bound=Message)


class AnyBroker:
    def __init__(self, bootstrap: str) -> None:
        """Create the connection. Raises CommandError if nothing listens at the address."""
        self._bootstrap = bootstrap
        check_reachable(bootstrap)
        self._brokers = Brokers(bootstrap, CLIENT_ID)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._brokers.close()

    def ask(self, request: Message, kind: type[Response]) -> Response:
        """Return the answer of any broker. Raises CommandError if none answers."""
        try:
            return self._brokers.ask_any(request, kind, REQUEST_TIMEOUT_S)
        except ClientError as error:
            raise CommandError(f"no answer from {self._bootstrap} ({error}): check that it is a broker") from None


def check(code: int, message: str | None) -> None:
    """Raise CommandError if the broker refused."""
    if code == ErrorCode.SECURITY_DISABLED:
        raise CommandError(
            "the broker has no authorizer, so access rules have no effect: start it with "
            "authorizer.class.name=StandardAuthorizer, and name yourself in super.users"
        )
    if code:
        raise refused(code, message)
