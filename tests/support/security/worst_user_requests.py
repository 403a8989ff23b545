"""The most expensive requests about logins and users, as name, version and the function that makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowstone.wire import messages as m


def user_cases() -> Iterator[tuple[str, int, Callable[[int], Any]]]:
    yield "SaslHandshake", 1, lambda _: m.SaslHandshakeRequest(mechanism="A" * 32000)
    yield "SaslAuthenticate", 2, lambda n: m.SaslAuthenticateRequest(auth_bytes=b"A" * n)
    yield "DescribeUserScramCredentials", 0, _described
    yield "AlterUserScramCredentials", 0, lambda n: _altered(min(n, 1000))


def _described(count: int) -> m.DescribeUserScramCredentialsRequest:
    names = [m.DescribeUserScramCredentialsRequestUserName(name=f"n{index}") for index in range(count)]
    return m.DescribeUserScramCredentialsRequest(users=names)


def _altered(count: int) -> m.AlterUserScramCredentialsRequest:
    return m.AlterUserScramCredentialsRequest(
        deletions=[],
        upsertions=[
            m.AlterUserScramCredentialsRequestScramCredentialUpsertion(
                name=f"n{index}", mechanism=2, iterations=4096, salt=b"salt", salted_password=bytes(64)
            )
            for index in range(count)
        ],
    )
