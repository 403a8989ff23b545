"""Access rules and quotas in a cluster: what one broker accepts counts on the others within a second."""

from __future__ import annotations

import time
from typing import Any

import pytest

import flowstone
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import STANDARD, User
from tests.support.wire_client import Client

WITHIN_S = 1.0
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


def _rules(asked: User) -> Any:
    request = m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)
    return asked.ask(3, request).resources


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
