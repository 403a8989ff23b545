"""Lines of the audit log about logins, users and quotas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowstone.authentication.plain import encode
from flowstone.wire import messages as m
from tests.support.security.secured import authenticate, handshake
from tests.support.security.tokens import app_with_tokens, logged_in


def test_logins_users_and_quotas_are_audited(tmp_path: Path) -> None:
    with app_with_tokens(tmp_path) as broker:
        with broker.client("SASL_PLAINTEXT") as stranger:
            handshake(stranger, "PLAIN")
            assert authenticate(stranger, encode("alice", "canary")).error_code != 0
        with logged_in(broker, "alice") as alice:
            upsertion = m.AlterUserScramCredentialsRequestScramCredentialUpsertion(
                name="dora", mechanism=2, iterations=4096, salt=b"salt", salted_password=b"canary".ljust(64)
            )
            assert alice.ask(0, m.AlterUserScramCredentialsRequest(upsertions=[upsertion])).results[0].error_code == 0
            entity = [m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="dora")]
            ops = [m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=1000.0)]
            entry = m.AlterClientQuotasRequestEntry(entity=entity, ops=ops)
            assert alice.ask(1, m.AlterClientQuotasRequest(entries=[entry])).entries[0].error_code == 0
    text = (tmp_path / "data/audit/audit.jsonl").read_text()
    assert "canary" not in text
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["login.failed", "login", "users.altered", "quota.changed"]
    failed, login, users, quota = lines
    assert (failed["host"], failed["mechanism"]) == ("127.0.0.1", "PLAIN")
    assert (login["principal"], login["again"]) == ("User:alice", False)
    assert (users["principal"], users["users"]) == ("User:alice", ["dora"])
    assert quota["quotas"] == {"producer_byte_rate": 1000.0}
