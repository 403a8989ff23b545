from __future__ import annotations

import time

import pytest

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.authentication.plain import encode
from flowstone.authentication.scram import ScramMechanism
from flowstone.broker.authentication import token_registry
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.records import DelegationTokensChanged
from flowstone.embedded.cluster import Cluster
from flowstone.errors import ApiError, ConfigError, ErrorCode
from flowstone.wire.messages import ExpireDelegationTokenRequest, RenewDelegationTokenRequest
from tests.support.running_app import RunningApp
from tests.support.security.secured import authenticate, handshake, write_files
from tests.support.security.tokens import SECRET, app_with_tokens, create, log_in_with
from tests.support.wire_client import Client

FAR_MS = 1 << 50
TIMEOUT_S = 10
ASKER = ClientSession("SASL_PLAINTEXT", "127.0.0.1:1")


def token(token_id: str, expires_ms: int = FAR_MS) -> DelegationToken:
    return DelegationToken(token_id, "User:alice", "User:alice", (), 0, FAR_MS, expires_ms)


def stored(broker: RunningApp) -> set[str]:
    return set(broker.app.services.metadata.image.delegation_tokens)


def test_a_secret_that_could_be_guessed_is_refused(tmp_path):
    broker = app_with_tokens(tmp_path, **{"delegation.token.secret.key": SECRET[:15]})
    with pytest.raises(ConfigError, match="at least 16 characters") as raised, broker:
        pass
    assert SECRET[:15] not in str(raised.value)


def test_expired_tokens_are_removed_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(token_registry, "REMOVED_AT_ONCE_MAX", 1)
    with app_with_tokens(tmp_path, **{"delegation.token.expiry.check.interval.ms": "30"}) as broker:
        kept = token("kept")
        expired = tuple(token(f"old-{number}", 1) for number in range(5))
        broker.run(broker.app.services.metadata.append([DelegationTokensChanged((kept, *expired), ())]))
        broker.run(broker.app._token_cleaner.remove_expired())
        assert stored(broker) == {"kept"}


def test_credentials_are_kept_for_a_limited_number_of_tokens_and_dropped_with_them(tmp_path, monkeypatch):
    monkeypatch.setattr(token_registry, "CREDENTIALS_MAX", 2)
    with app_with_tokens(tmp_path) as broker:
        tokens = broker.app.services.delegation_tokens
        assert tokens is not None
        names = ("a", "b", "c")
        broker.run(broker.app.services.metadata.append([DelegationTokensChanged(tuple(map(token, names)), ())]))
        found = [broker.run(tokens.credential(ScramMechanism.SHA_256, name, ASKER)) for name in names]
        assert None not in found
        assert list(tokens._credentials) == [("c", ScramMechanism.SHA_256)]
        hmac = tokens.hmac("c")
        assert tokens.id_of(hmac) == "c"
        broker.run(broker.app.services.metadata.append([DelegationTokensChanged((), ("c",))]))
        assert broker.run(tokens.credential(ScramMechanism.SHA_256, "c", ASKER)) is None
        assert tokens._credentials == {}
        with pytest.raises(ApiError) as raised:
            tokens.id_of(hmac)
        assert raised.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_token_counts_on_every_broker_also_after_its_creator_has_died(tmp_path):
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        **write_files(tmp_path),
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.jaas.config": f'{module} required username="broker" password="b" user_broker="b" user_alice="a";',
        "delegation.token.secret.key": SECRET,
        "connection.failed.authentication.delay.ms": "0",
    }
    with Cluster(3, settings=settings) as cluster:
        parts = [each.rpartition(":") for each in cluster.bootstrap.split(",")]
        addresses = [(host, int(port)) for host, _, port in parts]
        with Client(addresses[0]) as alice:
            handshake(alice, "PLAIN")
            assert authenticate(alice, encode("alice", "a")).error_code == 0
            token = create(alice)
        for address in addresses:
            with Client(address) as client:
                assert log_in_with(client, token.token_id, token.hmac).error_code == 0
        next(iter(cluster.brokers.values())).kill()
        with Client(addresses[1]) as alice:
            handshake(alice, "PLAIN")
            assert authenticate(alice, encode("alice", "a")).error_code == 0
            assert alice.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)).error_code == 0
            removal = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
            assert alice.ask(2, removal).error_code == 0
        ends = time.monotonic() + TIMEOUT_S
        while True:  # until the other broker knows, too
            with Client(addresses[2]) as client:
                if log_in_with(client, token.token_id, token.hmac).error_code != 0:
                    break
            assert time.monotonic() < ends
