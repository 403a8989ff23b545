"""The most expensive requests about logins and users, as name, version and the function that makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowstone.wire import messages as m


def user_cases() -> Iterator[tuple[str, int, Callable[[int], Any]]]:
    yield "SaslHandshake", 1, lambda _: m.SaslHandshakeRequest(mechanism="A" * 32000)
    yield "SaslAuthenticate", 2, lambda n: m.SaslAuthenticateRequest(auth_bytes=b"A" * n)
    yield "CreateDelegationToken", 3, _created
    yield "RenewDelegationToken", 2, lambda n: m.RenewDelegationTokenRequest(hmac=b"A" * n, renew_period_ms=-1)
    yield "ExpireDelegationToken", 2, lambda n: m.ExpireDelegationTokenRequest(hmac=b"A" * n, expiry_time_period_ms=-1)
    yield "DescribeDelegationToken", 3, _described_tokens
    yield "DescribeUserScramCredentials", 0, _described
    yield "AlterUserScramCredentials", 0, lambda n: _altered(min(n, 1000))
    yield "CreateDelegationToken", 3, _token_for_many
    yield "RenewDelegationToken", 2, lambda n: m.RenewDelegationTokenRequest(hmac=b"h" * n)
    yield "ExpireDelegationToken", 2, lambda n: m.ExpireDelegationTokenRequest(hmac=b"h" * n)
    yield "DescribeDelegationToken", 3, _tokens_of_many


def _token_for_many(count: int) -> m.CreateDelegationTokenRequest:
    renewers = [
        m.CreateDelegationTokenRequestCreatableRenewers(principal_type="User", principal_name=f"n{index}")
        for index in range(count)
    ]
    return m.CreateDelegationTokenRequest(renewers=renewers)


def _tokens_of_many(count: int) -> m.DescribeDelegationTokenRequest:
    owners = [
        m.DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type="User", principal_name=f"n{index}")
        for index in range(count)
    ]
    return m.DescribeDelegationTokenRequest(owners=owners)


def _described(count: int) -> m.DescribeUserScramCredentialsRequest:
    names = [m.DescribeUserScramCredentialsRequestUserName(name=f"n{index}") for index in range(count)]
    return m.DescribeUserScramCredentialsRequest(users=names)


def _created(count: int) -> m.CreateDelegationTokenRequest:
    renewers = [
        m.CreateDelegationTokenRequestCreatableRenewers(principal_type="User", principal_name=f"n{index}")
        for index in range(count)
    ]
    return m.CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)


def _described_tokens(count: int) -> m.DescribeDelegationTokenRequest:
    owners = [
        m.DescribeDelegationTokenRequestDescribeDelegationTokenOwner(principal_type="User", principal_name=f"n{index}")
        for index in range(count)
    ]
    return m.DescribeDelegationTokenRequest(owners=owners)


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
