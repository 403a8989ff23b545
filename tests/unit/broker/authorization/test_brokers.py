"""Access rules, quotas and users in a cluster: what one broker accepts counts on the others within a second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import flowstone
from flowstone.authentication.scram import ScramMechanism, salted_password
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import STANDARD, User
from tests.support.security.secured import PASSWORD, USER, log_in, write_files
from tests.support.wire_client import Client

WITHIN_S = 1.0
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS: dict[str, Any] = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}


@pytest.mark.measures_time
def test_rules_and_quotas_reach_every_broker_and_replication_goes_on() -> None:
    with flowstone.Cluster(3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        cluster.wait_in_sync("t")  # followers fetch with the permission of a super user
        users = [User(Client(_address(each)), "admin") for each in cluster.bootstrap.split(",")]
        users[0].allow("bob", Op.READ, Kind.TOPIC, "t")
        entity = [m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="bob")]
        ops = [m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=5)]
        entries = [m.AlterClientQuotasRequestEntry(entity=entity, ops=ops)]
        assert users[0].ask(1, m.AlterClientQuotasRequest(entries=entries)).entries[0].error_code == 0
        ends = time.monotonic() + WITHIN_S
        for each in users:
            while not (_rules(each) and each.ask(1, m.DescribeClientQuotasRequest()).entries):
                assert time.monotonic() < ends
            each.client.close()


@pytest.mark.measures_time
def test_a_user_logs_in_to_every_broker_as_soon_as_added(tmp_path: Path) -> None:
    settings = {
        **write_files(tmp_path),
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="{USER}" password="{PASSWORD}";',
    }
    with flowstone.Cluster(3, settings=settings) as cluster:
        clients = [Client(_address(each)) for each in cluster.bootstrap.split(",")]
        assert not log_in(clients[0]).error_code
        salt = b"a salt"
        upsertion = m.AlterUserScramCredentialsRequestScramCredentialUpsertion(
            name="dora",
            mechanism=ScramMechanism.SHA_512,
            iterations=4096,
            salt=salt,
            salted_password=salted_password(ScramMechanism.SHA_512, "new", salt, 4096),
        )
        changed = clients[0].ask(0, m.AlterUserScramCredentialsRequest(upsertions=[upsertion]))
        assert [each.error_code for each in changed.results] == [0]
        ends = time.monotonic() + WITHIN_S
        for each in cluster.bootstrap.split(","):
            while True:
                with Client(_address(each)) as dora:
                    if not log_in(dora, "dora", "new").error_code:
                        break
                assert time.monotonic() < ends
        for client in clients:
            client.close()


def _rules(asked: User) -> Any:
    request = m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
    return asked.ask(3, request).resources


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
