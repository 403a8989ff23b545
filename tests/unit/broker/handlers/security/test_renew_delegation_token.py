"""RenewDelegationToken from the wire: owners and renewers may, nobody else."""

from __future__ import annotations

import time

from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.support.security.tokens import create, log_in_with, logged_in

DAY_MS = 86_400_000


def test_owner_and_renewers_renew_and_expire_and_nobody_else(token_broker):
    with (
        logged_in(token_broker, "alice") as alice,
        logged_in(token_broker, "bob") as bob,
        logged_in(token_broker, "carol") as carol,
    ):
        token = create(alice, "bob")
        for version in (1, 2):
            renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=3_600_000)
            expire = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=60_000)
            remove = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
            unknown = RenewDelegationTokenRequest(hmac=b"unknown", renew_period_ms=-1)
            now_ms = time.time() * 1000
            assert abs(bob.ask(version, renew).expiry_timestamp_ms - now_ms - 3_600_000) < 60_000
            assert abs(alice.ask(version, expire).expiry_timestamp_ms - now_ms - 60_000) < 60_000
            for request in (renew, expire, remove):
                assert carol.ask(version, request).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            assert carol.ask(version, unknown).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert bob.ask(2, remove).error_code == 0
        assert alice.ask(2, renew).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with token_broker.client("SASL_PLAINTEXT") as client:
        assert log_in_with(client, token.token_id, token.hmac).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
