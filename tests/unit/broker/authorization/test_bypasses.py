"""Ways around the access rules that a client with many permissions of its own tries: each is refused, without effect.

`mallory` may do everything with every topic, group and transactional id whose name begins with `mine`, and nothing
with the cluster; `alice` owns the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.cluster.image.acl import ALL_OPERATIONS, PREFIXED
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.apis import APIS
from flowstone.wire.schema import load_api
from tests.support.acl_clients import User, app_with_rules, codes_in, user
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import transactional_batch
from tests.support.wire_client import batch_of
from tests.unit.broker.authorization.test_every_api import EXCEPTIONS, Names, fill

CLUSTER, TOPIC = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP, TXN = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
WAIT_S = 10.0
# The prefix of mallory's names, and the name of a topic, a group and a transactional id of each.
PREFIX, OWN, OTHERS = "mine", "mine-1", "alices"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with app_with_rules(str(tmp_path_factory.mktemp("data")), offsets_topic_num_partitions="1") as app:
        with user(app) as admin:
            topics = [m.CreateTopicsRequestTopic(name=n, num_partitions=1, replication_factor=1) for n in (OWN, OTHERS)]
            assert not set(codes_in(admin.ask(5, m.CreateTopicsRequest(topics=topics))))
            for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID):
                admin.allow("mallory", cast(Op, ALL_OPERATIONS), kind, PREFIX, pattern=PREFIXED)
                admin.allow("alice", cast(Op, ALL_OPERATIONS), kind, OTHERS)
        yield app


@pytest.fixture
def mallory(app: RunningApp) -> Iterator[User]:
    with user(app, "mallory") as mallory:
        yield mallory


@pytest.fixture
def alice(app: RunningApp) -> Iterator[User]:
    with user(app, "alice") as alice:
        yield alice


def topic_id(app: RunningApp, name: str) -> bytes:
    return app.app.services.metadata.image.topics[name].topic_id


def of_the_cluster() -> Iterator[tuple[str, int]]:
    """Every version of every API that needs nothing but permissions for the cluster."""
    for key, endpoint in ENDPOINTS.items():
        kinds = {each.resource_type for each in endpoint.permissions}
        if kinds == {Kind.CLUSTER}:
            for version in range(endpoint.min_version, endpoint.max_version + 1):
                yield APIS[key].name, version


def test_the_apis_of_brokers_are_among_those_of_the_cluster() -> None:
    found = {api for api, _ in of_the_cluster()}
    assert found >= {"WriteTxnMarkers", "WriteShareGroupState", "DeleteShareGroupState", "InitializeShareGroupState"}
    assert found >= {"ReadShareGroupState", "ReadShareGroupStateSummary", "AlterPartitionReassignments", "CreateAcls"}
    assert found >= {"AlterUserScramCredentials", "AlterClientQuotas", "UpdateFeatures", "UnregisterBroker"}


@pytest.mark.parametrize(("api", "version"), list(of_the_cluster()))
def test_an_owner_of_topics_groups_and_transactions_is_no_broker(
    app: RunningApp, mallory: User, api: str, version: int
) -> None:
    names = Names(OWN, OWN, OWN, topic_id(app, OWN))
    before = app.app.services.metadata.image, log_end(app, OWN)
    answer = mallory.ask(version, fill(load_api(api).request, version, names))
    assert set(codes_in(answer)) == EXCEPTIONS.get((api, version), {CLUSTER})
    assert (app.app.services.metadata.image, log_end(app, OWN)) == before


def log_end(app: RunningApp, topic: str) -> int:
    partition = app.app.services.partitions.find(TopicPartition(topic, 0))
    return partition.log.log_end_offset if partition is not None else 0


@pytest.mark.parametrize("version", [4, 5])
def test_the_requests_of_brokers_for_transactions_are_theirs(mallory: User, version: int) -> None:
    transaction = m.AddPartitionsToTxnRequestTransaction(
        transactional_id=OWN,
        producer_id=1,
        producer_epoch=0,
        topics=[m.AddPartitionsToTxnRequestTopic(name=OWN, partitions=[0])],
    )
    answer = mallory.ask(version, m.AddPartitionsToTxnRequest(transactions=[transaction]))
    assert set(codes_in(answer)) == {CLUSTER}


def test_the_coordinator_of_share_states_is_the_brokers(app: RunningApp, mallory: User) -> None:
    before = app.app.services.metadata.image
    request = m.FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{OWN}:AAAAAAAAAAAAAAAAAAAAAA:0"])
    assert set(codes_in(mallory.ask(6, request))) == {CLUSTER}
    assert app.app.services.metadata.image is before


# Topics by name and id


@pytest.mark.parametrize("name", [OWN, "", None])
def test_a_name_of_ones_own_does_not_hide_the_id_of_another_topic(app: RunningApp, mallory: User, name: Any) -> None:
    before, others = app.app.services.metadata.image, topic_id(app, OTHERS)
    deleted = mallory.ask(
        6, m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=name, topic_id=others)], timeout_ms=10_000)
    )
    assert set(codes_in(deleted)) <= {TOPIC, ErrorCode.INVALID_REQUEST}
    assert set(codes_in(deleted))
    shown = mallory.ask(12, m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name, topic_id=others)]))
    assert [(each.error_code, each.name, each.partitions) for each in shown.topics] == [(TOPIC, None, [])]
    assert app.app.services.metadata.image is before


def test_the_id_of_another_topic_is_of_no_use(app: RunningApp, mallory: User, alice: User) -> None:
    produced = m.ProduceRequestTopic(
        name=OTHERS, partition_data=[m.ProduceRequestPartition(index=0, records=batch_of(b"secret"))]
    )
    assert not set(codes_in(alice.ask(9, m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[produced]))))
    others = topic_id(app, OTHERS)
    partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    own = m.FetchRequestTopic(topic_id=topic_id(app, OWN), partitions=[partition])
    wanted = m.FetchRequestTopic(topic_id=others, partitions=[partition])
    for topics in ([wanted], [own, wanted]):
        answer = mallory.ask(13, m.FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=topics))
        assert set(codes_in(answer)) == {TOPIC}
        assert not any(each.records for topic in answer.responses for each in topic.partitions)
    written = m.ProduceRequestTopic(topic_id=others, partition_data=produced.partition_data)
    before = log_end(app, OTHERS)
    assert set(codes_in(mallory.ask(13, m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[written])))) == {TOPIC}
    assert log_end(app, OTHERS) == before


@pytest.mark.parametrize("replica_id", [0, 1, 7])
def test_an_old_fetch_is_none_of_a_replica(app: RunningApp, mallory: User, replica_id: int) -> None:
    partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [m.FetchRequestTopic(topic=OWN, partitions=[partition])]
    request = m.FetchRequest(replica_id=replica_id, max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    assert set(codes_in(mallory.ask(12, request))) == {TOPIC}


def test_internal_topics_are_written_by_coordinators_alone(app: RunningApp) -> None:
    with user(app) as admin:  # even by a super user
        admin.ask(4, m.FindCoordinatorRequest(coordinator_keys=["group"]))
        before = log_end(app, "__consumer_offsets")
        data = [m.ProduceRequestPartition(index=0, records=batch_of(b"value"))]
        topics = [m.ProduceRequestTopic(name="__consumer_offsets", partition_data=data)]
        answer = admin.ask(9, m.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics))
    assert set(codes_in(answer)) == {ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert log_end(app, "__consumer_offsets") == before


@pytest.mark.parametrize("kind", [4, 8, 16, 99])
def test_settings_of_anything_but_topics_and_groups_are_the_clusters(mallory: User, kind: int) -> None:
    described = [m.DescribeConfigsRequestResource(resource_type=kind, resource_name="1", configuration_keys=None)]
    answer = mallory.ask(4, m.DescribeConfigsRequest(resources=described))
    assert [(each.error_code, each.configs) for each in answer.results] == [(CLUSTER, [])]
    config = m.IncrementalAlterConfigsRequestConfig(name="log.retention.ms", config_operation=0, value="1")
    altered = [m.IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name="1", configs=[config])]
    assert set(codes_in(mallory.ask(1, m.IncrementalAlterConfigsRequest(resources=altered)))) == {CLUSTER}


def test_an_expression_finds_no_topic_that_its_client_may_not_see(app: RunningApp, mallory: User) -> None:
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    beat = m.ConsumerGroupHeartbeatRequest(
        group_id=OWN,
        member_id=member,
        subscribed_topic_regex=".*",
        rebalance_timeout_ms=60_000,
        topic_partitions=[],
    )
    assigned: set[bytes] = set()
    ends = time.monotonic() + WAIT_S
    while not assigned and time.monotonic() < ends:
        answer = mallory.ask(1, beat)
        assert not answer.error_code, answer.error_message
        beat = m.ConsumerGroupHeartbeatRequest(group_id=OWN, member_id=member, member_epoch=answer.member_epoch)
        if answer.assignment is not None:
            assigned |= {each.topic_id for each in answer.assignment.topic_partitions}
        time.sleep(0.05)
    assert assigned == {topic_id(app, OWN)}


# Transactions


def test_nobody_ends_or_joins_a_transaction_by_its_producers_id(app: RunningApp, mallory: User, alice: User) -> None:
    with user(app) as admin:  # mallory may write to the topic, which is shared
        admin.allow("mallory", Op.WRITE, Kind.TOPIC, OTHERS)
    mine, others = begin(mallory, OWN), begin(alice, OTHERS)
    assert mine.producer_id != others.producer_id
    added = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=OTHERS,
        v3_and_below_producer_id=others.producer_id,
        v3_and_below_producer_epoch=others.producer_epoch,
        v3_and_below_topics=[m.AddPartitionsToTxnRequestTopic(name=OTHERS, partitions=[0])],
    )
    assert not set(codes_in(alice.ask(3, added)))
    before = log_end(app, OTHERS)
    identity = {"producer_id": others.producer_id, "producer_epoch": others.producer_epoch}
    for transactional_id, expected in ((OTHERS, TXN), (OWN, ErrorCode.INVALID_PRODUCER_ID_MAPPING)):
        for committed in (True, False):
            end = m.EndTxnRequest(transactional_id=transactional_id, committed=committed, **identity)
            assert mallory.ask(3, end).error_code == expected
        offsets = m.AddOffsetsToTxnRequest(transactional_id=transactional_id, group_id=OWN, **identity)
        assert mallory.ask(3, offsets).error_code == expected
        batch = transactional_batch(b"false", others.producer_id, others.producer_epoch + (transactional_id == OWN))
        data = [m.ProduceRequestTopic(name=OTHERS, partition_data=[m.ProduceRequestPartition(index=0, records=batch)])]
        produced = m.ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=data)
        assert set(codes_in(mallory.ask(11, produced))) == {expected}
    assert log_end(app, OTHERS) == before
    end = m.EndTxnRequest(transactional_id=OTHERS, committed=False, **identity)
    assert alice.ask(3, end).error_code == 0


def begin(who: User, transactional_id: str) -> Any:
    request = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1)
    assert not set(codes_in(who.ask(4, m.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]))))
    ends = time.monotonic() + WAIT_S
    while (answer := who.ask(4, request)).error_code and time.monotonic() < ends:
        time.sleep(0.05)  # the coordinator's topic is being made
    assert answer.error_code == 0
    return answer
