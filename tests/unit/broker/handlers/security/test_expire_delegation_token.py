"""ExpireDelegationToken from the wire: what follows for logins and sessions."""

from __future__ import annotations

import time

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)
from tests.support.security.tokens import create, log_in_with, logged_in, seen
from tests.support.wire_client import Closed

DAY_MS = 86_400_000


def test_an_expired_token_is_refused_and_its_sessions_end(token_broker):
    with logged_in(token_broker, "alice") as alice:
        token = create(alice)
        with token_broker.client("SASL_PLAINTEXT") as client:
            alice.ask(2, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=400))
            answer = log_in_with(client, token.token_id, token.hmac)
            assert 0 < answer.session_lifetime_ms <= 400
            time.sleep(0.5)  # until the token has expired
            with pytest.raises(Closed):
                client.ask(12, MetadataRequest(topics=[]))
        with token_broker.client("SASL_PLAINTEXT") as client:
            assert log_in_with(client, token.token_id, token.hmac).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        renewed = alice.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
        assert renewed.error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED
        assert token.token_id not in seen(alice)
        removed = alice.ask(2, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
        assert removed.error_code == 0  # an expired token can be removed, as in Kafka
