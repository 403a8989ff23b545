"""The order of login checks, and which are dropped when too many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from flowstone.broker.loop.login_checks import LOGIN_CHECKS_MAX, LoginChecks, network_of
from flowstone.errors import ProtocolError

FLOOD, HONEST, OTHER = "10.0.0.66", "10.0.0.1", "10.0.0.2"


@dataclass
class Client:
    host: str
    is_closed: bool = False


class Thread:
    """Runs a function when it is told to."""

    def __init__(self) -> None:
        self._begun: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self.made: list[Any] = []

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        assert not self._begun, "one at a time"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._begun.append((function, future))
        return future

    async def finish(self, count: int) -> None:
        for _ in range(count):
            function, future = self._begun.pop()
            try:
                self.made.append(function())
                future.set_result(self.made[-1])
            except ValueError as error:
                future.set_exception(error)
            await asyncio.sleep(0)


def check(checks: LoginChecks, host: str, name: str) -> asyncio.Future[str]:
    return checks.add(lambda: name, Client(host))


def refused(checks: list[asyncio.Future[str]]) -> list[bool]:
    return [each.done() and isinstance(each.exception(), ProtocolError) for each in checks]


def run(test: Callable[[LoginChecks, Thread], Any]) -> None:
    async def body() -> None:
        thread = Thread()
        await test(LoginChecks(thread.run), thread)

    asyncio.run(body())


def test_addresses_take_turns():
    async def test(checks: LoginChecks, thread: Thread) -> None:
        waiting = [check(checks, FLOOD, f"flood {number}") for number in range(50)]
        waiting += [check(checks, HONEST, f"honest {number}") for number in range(2)]
        waiting.append(check(checks, OTHER, "other"))
        await thread.finish(6)
        assert thread.made == ["flood 0", "flood 1", "honest 0", "other", "flood 2", "honest 1"]
        assert await waiting[-1] == "other"

    run(test)


def test_a_flood_of_one_address_locks_out_no_other():
    async def test(checks: LoginChecks, thread: Thread) -> None:
        flood = [check(checks, FLOOD, f"flood {number}") for number in range(3 * LOGIN_CHECKS_MAX)]
        assert refused(flood) == [number >= LOGIN_CHECKS_MAX for number in range(len(flood))]
        honest = [check(checks, f"10.0.1.{number}", f"honest {number}") for number in range(20)]
        assert refused(honest) == [False] * 20
        assert sum(refused(flood)) == 2 * LOGIN_CHECKS_MAX + 20  # each took the place of one of the flood
        await thread.finish(22)
        assert thread.made == ["flood 0", "flood 1", *(f"honest {number}" for number in range(20))]

    run(test)


def test_the_last_one_is_dropped_if_all_addresses_have_equally_many():
    async def test(checks: LoginChecks, thread: Thread) -> None:
        waiting = [check(checks, f"10.0.2.{number}", str(number)) for number in range(LOGIN_CHECKS_MAX + 1)]
        assert refused(waiting) == [False] * LOGIN_CHECKS_MAX + [True]
        await thread.finish(LOGIN_CHECKS_MAX)
        assert [await each for each in waiting[:-1]] == [str(number) for number in range(LOGIN_CHECKS_MAX)]

    run(test)


def test_checks_of_closed_connections_are_not_made():
    async def test(checks: LoginChecks, thread: Thread) -> None:
        gone = Client(FLOOD)
        first, second = check(checks, FLOOD, "first"), checks.add(lambda: "gone", gone)
        third = check(checks, FLOOD, "third")
        gone.is_closed = True
        await thread.finish(2)
        assert thread.made == ["first", "third"]
        assert second.cancelled()
        assert (await first, await third) == ("first", "third")

    run(test)


def test_the_error_of_a_check_is_that_of_its_login_alone():
    async def test(checks: LoginChecks, thread: Thread) -> None:
        failing, next_one = checks.add(lambda: int("x"), Client(HONEST)), check(checks, HONEST, "next")
        await thread.finish(2)
        with pytest.raises(ValueError, match="invalid literal"):
            await failing
        assert await next_one == "next"

    run(test)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("[2001:db8:1:2:3::1]", "[2001:db8:1:2:ffff::9]", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("a name", "another name", False),
    ],
)
def test_the_addresses_of_an_ipv6_network_count_as_one(one, other, is_same):
    assert (network_of(one) == network_of(other)) == is_same
