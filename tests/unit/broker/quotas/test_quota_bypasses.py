"""Ways around a quota: other client ids, other connections, no acknowledgement, a delegation token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.wire import messages as m
from tests.support.acl_clients import User
from tests.support.running_app import RunningApp
from tests.support.security.tokens import app_with_tokens, create, log_in_with, logged_in
from tests.support.wire_client import batch_of

LISTENER = "SASL_PLAINTEXT"
QUOTA_BYTES, RECORD_BYTES = 1_000, 5_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    """A broker on which alice may write 1,000 bytes a second."""
    with app_with_tokens(tmp_path, **{"quota.window.num": "2"}) as broker, broker.client("PLAINTEXT") as admin:
        assert admin.create_topic("t") == 0
        entity = [m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="alice")]
        ops = [m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=QUOTA_BYTES)]
        entries = [m.AlterClientQuotasRequestEntry(entity=entity, ops=ops)]
        assert admin.ask(1, m.AlterClientQuotasRequest(entries=entries)).entries[0].error_code == 0
        yield broker


def produced(acks: int = 1) -> m.ProduceRequest:
    partition = m.ProduceRequestPartition(index=0, records=batch_of(b"x" * RECORD_BYTES))
    topics = [m.ProduceRequestTopic(name="t", partition_data=[partition])]
    return m.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


def throttle_ms(client: Any, client_id: str) -> int:
    return int(User(client, client_id).ask(9, produced()).throttle_time_ms)


def test_other_client_ids_and_connections_share_the_quota_of_their_user(broker: RunningApp) -> None:
    told = []
    for number in range(4):
        with logged_in(broker, "alice") as alice:
            told.append(throttle_ms(alice, f"id-{number}"))
    assert told[0] > 0
    assert told == sorted(set(told)), "each waits longer than the one before"
    with logged_in(broker, "bob") as bob:
        assert throttle_ms(bob, "id-0") == 0


def test_a_delegation_token_has_the_quota_of_its_owner(broker: RunningApp) -> None:
    with logged_in(broker, "alice") as alice, broker.client(LISTENER) as holder:
        token = create(alice)
        first = throttle_ms(alice, "alice")
        assert log_in_with(holder, token.token_id, token.hmac).error_code == 0
        assert throttle_ms(holder, "holder") > first > 0


def test_a_producer_without_acknowledgements_is_muted_too(broker: RunningApp) -> None:
    with logged_in(broker, "alice") as alice:
        client = User(alice, "alice")
        client.send(9, produced(acks=0))
        request = m.ApiVersionsRequest(client_software_name="a", client_software_version="1")
        client.send(3, request)
        alice.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.receive(3, request)
