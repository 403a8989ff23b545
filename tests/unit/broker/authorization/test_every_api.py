"""Every API in every version, asked by a client without permissions: its error, no effect, nothing revealed.

An API that is served and not in `EXPECTED` fails the test: say which error it answers without permission.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from flowstone.broker.authorization.table import CHECKED_BY_HANDLERS, guard_of
from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.apis import APIS
from flowstone.wire.schema import Field, Struct, load_api
from tests.support.acl_clients import ADMIN, User, app_with_rules, codes_in
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, Closed, batch_of

TOPIC, GROUP, TXN, CLUSTER = 29, 30, 31 + 22, 31
NONE: set[int] = set()
NO_SASL = 34  # on a listener without it
NO_LOGIN = 64  # DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on a listener without logins

# The error codes in the response to a client without permissions. Those of an empty set answer without what is hidden.
EXPECTED: dict[str, set[int]] = {
    "Produce": {TXN},
    "Fetch": {TOPIC},
    "ListOffsets": {TOPIC},
    "Metadata": {TOPIC},
    "OffsetCommit": {GROUP},
    "OffsetFetch": {GROUP},
    "FindCoordinator": {GROUP},
    "JoinGroup": {GROUP},
    "Heartbeat": {GROUP},
    "LeaveGroup": {GROUP},
    "SyncGroup": {GROUP},
    "DescribeGroups": {GROUP},
    "ListGroups": NONE,
    "ApiVersions": NONE,
    "SaslHandshake": {NO_SASL},
    "SaslAuthenticate": {NO_SASL},
    "DescribeUserScramCredentials": {CLUSTER},
    "AlterUserScramCredentials": {CLUSTER},
    "CreateDelegationToken": {NO_LOGIN},
    "RenewDelegationToken": {NO_LOGIN},
    "ExpireDelegationToken": {NO_LOGIN},
    "DescribeDelegationToken": {NO_LOGIN},
    "CreateTopics": {TOPIC},
    "DeleteTopics": {TOPIC},
    "DeleteRecords": {TOPIC},
    "InitProducerId": {TXN},
    "OffsetForLeaderEpoch": {TOPIC},
    "AddPartitionsToTxn": {TXN},
    "AddOffsetsToTxn": {TXN},
    "EndTxn": {TXN},
    "WriteTxnMarkers": {CLUSTER},
    "TxnOffsetCommit": {TXN},
    "DescribeClientQuotas": {CLUSTER},
    "AlterClientQuotas": {CLUSTER},
    "DescribeAcls": {CLUSTER},
    "CreateAcls": {CLUSTER},
    "DeleteAcls": {CLUSTER},
    "DescribeConfigs": {TOPIC},
    "AlterConfigs": {TOPIC},
    "AlterReplicaLogDirs": {CLUSTER},
    "DescribeLogDirs": {CLUSTER},
    "CreatePartitions": {TOPIC},
    "DeleteGroups": {GROUP},
    "ElectLeaders": {CLUSTER},
    "IncrementalAlterConfigs": {TOPIC},
    "AlterPartitionReassignments": {CLUSTER},
    "ListPartitionReassignments": {CLUSTER},
    "OffsetDelete": {GROUP},
    "UpdateFeatures": {CLUSTER},
    "DescribeCluster": NONE,
    "DescribeProducers": {TOPIC},
    "UnregisterBroker": {CLUSTER},
    "GetTelemetrySubscriptions": NONE,
    "PushTelemetry": NONE,
    "DescribeQuorum": {CLUSTER},
    "ListConfigResources": {CLUSTER},
    "DescribeTransactions": {TXN},
    "ListTransactions": NONE,
    "DescribeTopicPartitions": {TOPIC},
    "ConsumerGroupHeartbeat": {GROUP},
    "ConsumerGroupDescribe": {GROUP},
    "ShareGroupHeartbeat": {GROUP},
    "ShareGroupDescribe": {GROUP},
    "DescribeShareGroupOffsets": {GROUP},
    "AlterShareGroupOffsets": {GROUP},
    "DeleteShareGroupOffsets": {GROUP},
    "ShareFetch": {GROUP},
    "ShareAcknowledge": {GROUP},
    "InitializeShareGroupState": {CLUSTER},
    "ReadShareGroupState": {CLUSTER},
    "WriteShareGroupState": {CLUSTER},
    "DeleteShareGroupState": {CLUSTER},
    "ReadShareGroupStateSummary": {CLUSTER},
}
# Versions whose response has no field for the error, or whose requests are others'.
EXCEPTIONS: dict[tuple[str, int], set[int]] = {
    ("DescribeLogDirs", 1): NONE,
    ("PushTelemetry", 0): {117},  # UNKNOWN_SUBSCRIPTION_ID: it needs no permission, but a subscription
    ("DescribeLogDirs", 2): NONE,
    ("AddPartitionsToTxn", 4): {CLUSTER},
    ("AddPartitionsToTxn", 5): {CLUSTER},
}
METADATA_BY_ID_SINCE = 12
EVE = "eve"


class Names(NamedTuple):
    topic: str
    group: str
    transactional_id: str
    topic_id: bytes

    def of(self, field: str) -> str:
        if field in ("group_id", "groups", "group_ids", "groups_names", "key", "coordinator_keys"):
            return self.group
        if "transactional_id" in field:
            return self.transactional_id
        return self.topic


def fill(struct: Struct, version: int, names: Names) -> Any:
    """A message with one entry in each array, which names the resources."""
    values = {
        field.name: _value(field, version, names)
        for field in struct.fields
        if version in field.versions and (field.tag is None or field.name == "replica_state")
    }
    return getattr(m, struct.name)(**values)


def _value(field: Field, version: int, names: Names) -> Any:
    value: Any = field.default
    if field.name in ("replica_state", "forgotten_topics_data", "assignments", "replicas"):
        return None if field.name in ("replica_state", "replicas") else []
    if field.struct is not None:
        value = fill(field.struct, version, names)
    elif field.type == "string":
        value = names.of(field.name)
    elif field.type == "uuid":
        value = names.topic_id
    elif field.type == "records":
        value = batch_of(b"value")
    elif field.type == "bytes":
        value = b""
    elif field.name == "resource_type":
        value = 2
    elif field.name == "timeout_ms":
        value = 10_000
    elif field.name in ("acks", "replica_id", "session_epoch"):
        value = -1
    return (
        [value or 0]
        if field.is_array and field.type in ("int8", "int32", "int64")
        else [value]
        if field.is_array
        else value
    )


def ask(client: Client, who: str, version: int, request: Any) -> tuple[Any, bytes]:
    user = User(client, who)
    user.send(version, request)
    return user.receive(version, request)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with app_with_rules(str(tmp_path_factory.mktemp("data"))) as app:
        with app.client() as client:
            topics = [m.CreateTopicsRequestTopic(name="secret", num_partitions=1, replication_factor=1)]
            created, _ = ask(client, ADMIN, 5, m.CreateTopicsRequest(topics=topics))
            assert not list(codes_in(created))
            produced, _ = ask(client, ADMIN, 12, fill_plain("Produce", 12, secret(app)))
            assert not list(codes_in(produced))
        yield app


def fill_plain(api: str, version: int, names: Names) -> Any:
    request = fill(load_api(api).request, version, names)
    request.transactional_id = None
    return request


def secret(app: RunningApp) -> Names:
    return Names("secret", "secret", "secret", app.app.services.metadata.image.topics["secret"].topic_id)


def served() -> Iterator[tuple[str, int]]:
    for key, endpoint in ENDPOINTS.items():
        for version in range(endpoint.min_version, endpoint.max_version + 1):
            yield APIS[key].name, version


def state(app: RunningApp) -> Any:
    """What a request may have changed."""
    services = app.app.services
    log = services.partitions.get("secret", 0).log
    assert services.partitions.find(TopicPartition("absent", 0)) is None
    return services.metadata.image, log.log_end_offset, log.log_start_offset, len(services.fetch_sessions)


def test_the_table_has_every_api_that_is_served() -> None:
    assert {APIS[key].name for key in ENDPOINTS} == set(EXPECTED)


def test_every_guard_checks_what_the_registry_declares() -> None:
    for key, endpoint in ENDPOINTS.items():
        name, declared = APIS[key].name, frozenset(endpoint.permissions)
        guard = guard_of(key, endpoint.permissions)
        checked = CHECKED_BY_HANDLERS.get(name, frozenset()) if guard is None else guard.permissions
        assert checked == declared, name


@pytest.mark.parametrize(("api", "version"), list(served()))
def test_a_client_without_permissions_is_refused_and_learns_nothing(app: RunningApp, api: str, version: int) -> None:
    schema, names = load_api(api), secret(app)
    if api == "Metadata" and version < METADATA_BY_ID_SINCE:
        names = names._replace(topic_id=bytes(16))
    absent = Names("absent", "absent", "absent", names.topic_id)
    before = state(app)
    answers = []
    for each in (names, absent):
        with app.client() as client:
            response, data = ask(client, EVE, version, fill(schema.request, version, each))
        assert set(codes_in(response)) == EXCEPTIONS.get((api, version), EXPECTED[api]), response
        answers.append(data)
    # The same bytes for what exists and what does not: they differ in the names alone, which the client knows.
    assert answers[0].replace(b"secret", b"absent") == answers[1]
    assert state(app) == before


@pytest.mark.parametrize("version", range(3, 14))
def test_a_produce_without_transactional_id_is_refused_by_topic(app: RunningApp, version: int) -> None:
    before = state(app)
    with app.client() as client:
        response, _ = ask(client, EVE, version, fill_plain("Produce", version, secret(app)))
        assert set(codes_in(response)) == {TOPIC}
    assert state(app) == before


def test_a_produce_without_acknowledgement_closes_the_connection(app: RunningApp) -> None:
    before = state(app)
    request = fill_plain("Produce", 12, secret(app))
    request.acks = 0
    with app.client() as client, pytest.raises(Closed):
        ask(client, EVE, 12, request)
    assert state(app) == before


@pytest.mark.parametrize("version", range(15, 19))
def test_a_client_does_not_fetch_as_a_replica(app: RunningApp, version: int) -> None:
    request = fill(load_api("Fetch").request, version, secret(app))
    broker = app.app.services.metadata.image.brokers[app.app.config.node_id]
    request.replica_state = m.FetchRequestReplicaState(replica_id=broker.node_id, replica_epoch=broker.epoch)
    with app.client() as client:
        response, _ = ask(client, EVE, version, request)
        assert set(codes_in(response)) == {TOPIC}
        assert not any(partition.records for topic in response.responses for partition in topic.partitions)


@pytest.mark.parametrize("api", ["Metadata", "DescribeTopicPartitions", "ListGroups", "ListTransactions"])
def test_lists_show_a_client_without_permissions_nothing(app: RunningApp, api: str) -> None:
    schema = load_api(api)
    for version in range(schema.versions.first, schema.versions.last + 1):
        request = APIS[schema.key].request()
        if api == "Metadata" and version > 0:
            request.topics = None
        with app.client() as client:
            response, data = ask(client, EVE, version, request)
        assert b"secret" not in data
        assert not list(codes_in(response))


def test_a_request_for_an_unknown_topic_does_not_create_it(app: RunningApp) -> None:
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    with app.client() as client:
        response, _ = ask(client, EVE, 9, request)
    assert [topic.error_code for topic in response.topics] == [TOPIC]
    assert "new" not in app.app.services.metadata.image.topics
