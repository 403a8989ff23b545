"""CreateDelegationToken from the wire, logins with tokens, and what is stored and logged of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowstone.authentication.scram import ScramMechanism
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.image.acl import ALLOW, LITERAL, Acl
from flowstone.cluster.image.records import AclsCreated
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    ExpireDelegationTokenRequest,
    MetadataRequest,
    RenewDelegationTokenRequest,
)
from tests.support.security.tokens import app_with_tokens, create, log_in_with, logged_in, seen

DAY_MS = 86_400_000


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_client_logs_in_with_a_token_as_its_owner(token_broker, version, mechanism):
    with logged_in(token_broker, "alice") as alice:
        token = create(alice, version=version)
    assert (token.error_code, token.principal_name) == (0, "alice")
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY_MS
    with token_broker.client("SASL_PLAINTEXT") as client:
        answer = log_in_with(client, token.token_id, token.hmac, mechanism)
        assert answer.error_code == 0
        assert DAY_MS - 60_000 < answer.session_lifetime_ms <= DAY_MS
        assert client.ask(12, MetadataRequest(topics=[])).brokers
        # The client is alice, and sees what alice sees; but a token gives no other tokens.
        assert create(client).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_a_wrong_password_an_unknown_token_and_a_token_as_a_user_are_refused_alike(token_broker):
    with logged_in(token_broker, "alice") as alice:
        token = create(alice)
    told = []
    for token_id, hmac, extensions in (
        (token.token_id, bytes(64), ",tokenauth=true"),
        ("no-such-token", token.hmac, ",tokenauth=true"),
        (token.token_id, token.hmac, ""),
        (token.token_id, token.hmac, ",tokenauth=false"),
        ("alice", token.hmac, ",tokenauth=true"),
    ):
        with token_broker.client("SASL_PLAINTEXT") as client:
            answer = log_in_with(client, token_id, hmac, extensions=extensions)
            told.append((answer.error_code, answer.error_message))
    assert set(told) == {(ErrorCode.SASL_AUTHENTICATION_FAILED, told[0][1])}


def test_a_token_for_another_user_needs_a_permission(token_broker):
    asked = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    with logged_in(token_broker, "bob") as bob, logged_in(token_broker, "alice") as alice:
        assert create(bob, **asked).error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        rule = Acl(ResourceType.USER, "User:alice", LITERAL, "User:bob", "*", AclOperation.CREATE_TOKENS, ALLOW)
        token_broker.run(token_broker.app.services.metadata.append([AclsCreated((rule,))]))
        token = create(bob, **asked)
        assert (token.principal_name, token.token_requester_principal_name) == ("alice", "bob")
        assert token.token_id in seen(alice)
        assert token.token_id in seen(bob)
        # Who asked for it may not renew it.
        renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)
        assert bob.ask(2, renew).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert alice.ask(2, renew).error_code == 0
        wrong = create(alice, owner_principal_type="Group", owner_principal_name="alice")
        assert wrong.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def test_lifetimes_are_bounded_by_the_settings(token_broker):
    with logged_in(token_broker, "alice") as alice:
        short = create(alice, max_lifetime_ms=1000)
        assert short.max_timestamp_ms - short.issue_timestamp_ms == 1000
        assert short.expiry_timestamp_ms == short.max_timestamp_ms
        long = create(alice, max_lifetime_ms=2**62)
        assert long.max_timestamp_ms - long.issue_timestamp_ms == 7 * DAY_MS
        renewed = alice.ask(2, RenewDelegationTokenRequest(hmac=long.hmac, renew_period_ms=2**62))
        assert renewed.expiry_timestamp_ms < long.max_timestamp_ms


def test_tokens_survive_a_restart_and_another_secret_ends_them(tmp_path: Path):
    with app_with_tokens(tmp_path) as broker, logged_in(broker, "alice") as alice:
        token = create(alice)
    with app_with_tokens(tmp_path) as broker:
        with broker.client("SASL_PLAINTEXT") as client:
            assert log_in_with(client, token.token_id, token.hmac).error_code == 0
        with logged_in(broker, "alice") as alice:
            renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)
            assert alice.ask(2, renew).error_code == 0
    other = {"delegation.token.secret.key": "another secret of the brokers"}
    with app_with_tokens(tmp_path, **other) as broker, broker.client("SASL_PLAINTEXT") as client:
        assert log_in_with(client, token.token_id, token.hmac).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_changes_and_logins_are_audited_without_the_password(tmp_path: Path):
    with app_with_tokens(tmp_path) as broker, logged_in(broker, "alice") as alice:
        token = create(alice, "bob")
        alice.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
        with broker.client("SASL_PLAINTEXT") as client:
            log_in_with(client, token.token_id, token.hmac)
        alice.ask(2, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1))
    lines = [json.loads(line) for line in (tmp_path / "data/audit/audit.jsonl").read_text().splitlines()]
    of_token = [(line["event"], line["principal"]) for line in lines if line.get("token_id") == token.token_id]
    assert of_token == [
        ("token.created", "User:alice"),
        ("token.renewed", "User:alice"),
        ("login", "User:alice"),
        ("token.expired", "User:alice"),
    ]
