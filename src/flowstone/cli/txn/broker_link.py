"""The connections of `flowstone txn` to the brokers; requests are repeated after temporary failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, check_reachable
from flowstone.cli.common.errors import CommandError
from flowstone.client import ClientError, GaveUp
from flowstone.client.brokers import Brokers
from flowstone.client.errors import Retriable
from flowstone.client.retry_deadline import RetryDeadline

CLIENT_ID = "flowstone-cli"

Result = TypeVar("Result")
Item = TypeVar("Item")


class BrokerLink:
    def __init__(self, bootstrap: str) -> None:
        """Create the link. Raises CommandError if nothing listens at the address."""
        self._bootstrap = bootstrap
        check_reachable(bootstrap)
        self.brokers = Brokers(bootstrap, CLIENT_ID)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.brokers.close()

    def retry(self, ask: Callable[[float], Result]) -> Result:
        """Return the result of `ask`, repeated after temporary failures with the time that is left."""
        deadline = RetryDeadline(REQUEST_TIMEOUT_S, from_now=True)
        while True:
            try:
                return ask(deadline.left_s)
            except Retriable as error:
                _wait(deadline, error, self._bootstrap)


def _wait(deadline: RetryDeadline, error: Retriable, bootstrap: str) -> None:
    try:
        deadline.wait(error)
    except GaveUp:
        raise CommandError(f"no answer from {bootstrap} in time ({error}): see the brokers' logs") from None
    except ClientError as last:  # a topic or partition that is gone
        raise CommandError(str(last)) from None


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
