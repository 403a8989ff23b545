"""Who may ask for delegation tokens."""

from __future__ import annotations

import ssl

from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.support.security.tokens import app_with_tokens, create, log_in_with, logged_in

DAY_MS = 86_400_000


def test_clients_without_a_login_may_not_ask(token_broker, tmp_path):
    requests = (
        (2, RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1)),
        (2, ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1)),
        (3, DescribeDelegationTokenRequest(owners=None)),
    )
    with token_broker.client() as client:
        assert create(client).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        for version, request in requests:
            assert client.ask(version, request).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with token_broker.client("SSL") as client:  # encrypted, but nobody knows who it is
        client.socket = context.wrap_socket(client.socket)
        assert create(client).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_without_a_secret_there_are_no_tokens(tmp_path):
    with app_with_tokens(tmp_path, **{"delegation.token.secret.key": ""}) as broker:
        with logged_in(broker, "alice") as alice:
            assert create(alice).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            answer = alice.ask(3, DescribeDelegationTokenRequest(owners=None))
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        with broker.client("SASL_PLAINTEXT") as client:
            assert log_in_with(client, "any", b"any").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
