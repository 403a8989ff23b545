"""Kafka's own tools for access rules, quotas and delegation tokens, unchanged."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.cluster.image.acl import Acl
from tests.clients.conftest import Java
from tests.support.running_app import RunningApp
from tests.support.security.tokens import app_with_tokens

KAFKAS_NAME = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("data"))
    with RunningApp(data, authorizer_class_name=KAFKAS_NAME, super_users="User:ANONYMOUS") as app:
        yield app


def bootstrap(app: RunningApp) -> str:
    host, port = app.app.addresses["PLAINTEXT"]
    return f"{host}:{port}"


def rules(app: RunningApp) -> set[Acl]:
    return set(app.app.services.metadata.image.acls)


def test_kafka_acls_adds_lists_and_removes_rules(java: Java, secured: RunningApp) -> None:
    def acls(*arguments: str) -> str:
        return java("org.apache.kafka.tools.AclCommand", "--bootstrap-server", bootstrap(secured), *arguments)

    acls("--add", "--allow-principal", "User:bob", "--producer", "--topic", "orders", "--idempotent")
    assert {(rule.resource_type, rule.operation) for rule in rules(secured)} == {
        (2, 4), (2, 5), (2, 8), (4, 12),
    }  # fmt: skip
    acls("--add", "--allow-principal", "User:carol", "--consumer", "--topic", "orders", "--group", "billing")
    acls(
        *("--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.7", "--operation", "All"),
        *("--topic", "pay", "--resource-pattern-type", "prefixed"),
    )
    listed = acls("--list")
    for told in (
        "name=orders, patternType=LITERAL",
        "principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW",
        "name=billing, patternType=LITERAL",
        "name=pay, patternType=PREFIXED",
        "principal=User:eve, host=10.0.0.7, operation=ALL, permissionType=DENY",
    ):
        assert told in listed
    matching = acls("--list", "--topic", "payments", "--resource-pattern-type", "match")
    assert "name=pay" in matching
    assert "name=orders" not in matching
    acls("--remove", "--force", "--allow-principal", "User:bob", "--producer", "--topic", "orders", "--idempotent")
    assert {rule.principal for rule in rules(secured)} == {"User:carol", "User:eve"}
    acls("--remove", "--force", "--topic", "*", "--resource-pattern-type", "any")
    acls("--remove", "--force", "--topic", "orders")
    acls("--remove", "--force", "--group", "billing")
    acls("--remove", "--force", "--topic", "pay", "--resource-pattern-type", "prefixed")
    assert rules(secured) == set()


def test_kafka_configs_sets_shows_and_removes_quotas(java: Java, secured: RunningApp) -> None:
    def configs(*arguments: str) -> str:
        return java("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap(secured), *arguments)

    bob = ("--entity-type", "users", "--entity-name", "bob")
    quotas = "producer_byte_rate=1000000,consumer_byte_rate=2000000,request_percentage=12.5"
    configs("--alter", "--add-config", quotas, *bob)
    configs("--alter", "--add-config", "controller_mutation_rate=0.5", "--entity-type", "clients", "--entity-default")
    configs(
        "--alter", "--add-config", "connection_creation_rate=10", "--entity-type", "ips", "--entity-name", "10.0.0.7"
    )
    configs("--alter", "--add-config", "request_percentage=1", *bob, "--entity-type", "clients", "--entity-name", "app")
    stored = secured.app.services.metadata.image.quotas
    assert {entity: dict(values) for entity, values in stored.items()} == {
        (("user", "bob"),): {
            "producer_byte_rate": 1_000_000, "consumer_byte_rate": 2_000_000, "request_percentage": 12.5,
        },
        (("client-id", None),): {"controller_mutation_rate": 0.5},
        (("ip", "10.0.0.7"),): {"connection_creation_rate": 10},
        (("client-id", "app"), ("user", "bob")): {"request_percentage": 1},
    }  # fmt: skip
    described = configs("--describe", *bob)
    assert "user-principal 'bob'" in described
    assert "consumer_byte_rate=2000000.0" in described
    configs("--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate,request_percentage", *bob)
    stored = secured.app.services.metadata.image.quotas
    assert (("user", "bob"),) not in stored


def test_kafka_delegation_tokens_creates_describes_renews_and_expires(java: Java, tmp_path: Path) -> None:
    with app_with_tokens(tmp_path) as app:
        config = tmp_path / "alice.properties"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={login} username="alice" password="alice";\n'
        )
        host, port = app.app.addresses["SASL_PLAINTEXT"]

        def tokens(*arguments: str, config: Path = config) -> str:
            return java(
                "org.apache.kafka.tools.DelegationTokenCommand", "--bootstrap-server", f"{host}:{port}",
                "--command-config", str(config), *arguments,
            )  # fmt: skip

        created = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
        (token,) = app.app.services.metadata.image.delegation_tokens.values()
        assert app.app.services.delegation_tokens is not None
        hmac = b64encode(app.app.services.delegation_tokens.hmac(token.token_id)).decode()
        assert token.token_id in created
        assert hmac in created
        assert token.token_id in tokens("--describe", "--owner-principal", "User:alice")
        assert "Completed renew operation" in tokens("--renew", "--renew-time-period", "-1", "--hmac", hmac)
        # A Java client with the token is alice.
        with_token = tmp_path / "token.properties"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        with_token.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config={scram} username="{token.token_id}" password="{hmac}" tokenauth="true";\n'
        )
        java(
            "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", f"{host}:{port}", "--command-config",
            str(with_token), "--create", "--topic", "by-token",
        )  # fmt: skip
        assert "by-token" in app.app.services.metadata.image.topics
        assert "Completed expire operation" in tokens("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
        assert app.app.services.metadata.image.delegation_tokens == {}
