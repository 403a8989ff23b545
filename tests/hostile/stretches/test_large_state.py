"""Requests for all that a broker has do not hold the event loop, however much it has, and neither do its pages.

The requests are short, what they ask for is long: groups, their offsets and members, transactional ids, access rules,
quotas, users, tokens, topics, producers. `make test` has some thousand of each, FLOWSTONE_HOSTILE_LONG=1 as many as the
limits allow, or a hundred thousand.
"""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flowstone.broker.http.page import GET
from flowstone.broker.http.pages.page_list import PAGES
from flowstone.cluster.decisions.acl_changes import ACLS_MAX
from flowstone.cluster.decisions.quota_changes import QUOTA_ENTITIES_MAX
from flowstone.cluster.decisions.token_changes import TOKENS_MAX
from flowstone.coordinator.groups.consumer.messages import ConsumerHeartbeatRequest
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch
from tests.hostile.stretches.search import IS_LONG, TIMEOUT_S, answered, check, collector_of_a_broker
from tests.support.acl_clients import STANDARD
from tests.support.running_app import RunningApp
from tests.support.security.secured import handshake
from tests.support.security.tokens import app_with_tokens, authenticate, encode
from tests.support.wire_client import Client, frame

pytestmark = pytest.mark.measures_time

MANY = 100_000 if IS_LONG else 10_000
TOPICS = 10_000 if IS_LONG else 1_000
PARTITIONS = 10_000 if IS_LONG else 2_000
OFFSETS = PARTITIONS
ACLS, QUOTAS, TOKENS = (min(MANY, limit) for limit in (ACLS_MAX, QUOTA_ENTITIES_MAX, TOKENS_MAX))
USERS = 20_000 if IS_LONG else 2_000
USERS_PER_REQUEST = 1_000
TRANSACTIONS = 20_000 if IS_LONG else 2_000
PRODUCERS = 20_000 if IS_LONG else 2_000
MEMBERS = 1_000 if IS_LONG else 500
CALLS_PER_TURN, PIPELINED, CHANGED_AT_ONCE = 100, 500, 5_000
# That rules are for, in turn.
PRINCIPALS = 10
GROUP, CONSUMERS, WIDE = "large", "consumers", "wide"
USER = "alice"


class Question(NamedTuple):
    """A request for much, or one that changes a little of much, and the request that undoes it."""

    name: str
    version: int
    body: Any
    undo: tuple[int, Any] | None = None
    # Clients that logged in may ask for tokens.
    listener: str = "PLAINTEXT"


def _filter() -> m.DescribeClientQuotasRequestComponent:
    return m.DescribeClientQuotasRequestComponent(entity_type="user", match_type=2)


def _rule(name: str) -> m.CreateAclsRequestCreation:
    principal = f"User:x{int(name[1:]) % PRINCIPALS}"
    return m.CreateAclsRequestCreation(
        resource_type=2, resource_name=name, principal=principal, host="*", operation=3, permission_type=3
    )


def _every_rule(**fields: Any) -> dict[str, Any]:
    kinds = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    return {**kinds, "resource_name_filter": None, "principal_filter": None, "host_filter": None, **fields}


def _quota(user: str) -> m.AlterClientQuotasRequestEntry:
    return m.AlterClientQuotasRequestEntry(
        entity=[m.AlterClientQuotasRequestEntity(entity_type="user", entity_name=user)],
        ops=[m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=1e9)],
    )


def _token(owner: str) -> m.CreateDelegationTokenRequest:
    return m.CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=owner, max_lifetime_ms=-1)


def _users(first: int, count: int = USERS_PER_REQUEST) -> m.AlterUserScramCredentialsRequest:
    return m.AlterUserScramCredentialsRequest(
        upsertions=[
            m.AlterUserScramCredentialsRequestScramCredentialUpsertion(
                name=f"u{index}", mechanism=2, iterations=4096, salt=b"salt", salted_password=bytes(64)
            )
            for index in range(first, first + count)
        ]
    )


def _committed(group: str, topic: str, partitions: int) -> m.OffsetCommitRequest:
    return m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[
            m.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    m.OffsetCommitRequestPartition(partition_index=index, committed_offset=0)
                    for index in range(partitions)
                ],
            )
        ],
    )


def _fetched(version: int) -> m.OffsetFetchRequest:
    if version < 8:
        return m.OffsetFetchRequest(group_id=GROUP, topics=None)
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=GROUP, topics=None)])


def questions() -> Iterator[Question]:
    for version in (0, 5):
        yield Question("ListGroups", version, m.ListGroupsRequest())
    for version in (2, 7, 8, 9, 10):
        yield Question("OffsetFetch of everything", version, _fetched(version))
    yield Question("DescribeGroups", 6, m.DescribeGroupsRequest(groups=[GROUP, CONSUMERS, "joined"]))
    yield Question("DescribeGroups again and again", 6, m.DescribeGroupsRequest(groups=["joined"] * MEMBERS))
    yield Question("ConsumerGroupDescribe", 1, m.ConsumerGroupDescribeRequest(group_ids=[CONSUMERS]))
    yield Question("DeleteGroups of a large one", 2, m.DeleteGroupsRequest(groups_names=[CONSUMERS]))
    yield Question("ListTransactions", 2, m.ListTransactionsRequest(transactional_id_pattern=""))
    yield Question("ListTransactions by pattern", 2, m.ListTransactionsRequest(transactional_id_pattern=".*(a*)*b"))
    yield Question("ListConfigResources", 1, m.ListConfigResourcesRequest(resource_types=[]))
    yield Question("Metadata of everything", 12, m.MetadataRequest(topics=None))
    yield Question("Metadata of everything", 0, m.MetadataRequest(topics=[]))
    yield Question("DescribeLogDirs of everything", 4, m.DescribeLogDirsRequest(topics=None))
    yield Question("ListPartitionReassignments", 0, m.ListPartitionReassignmentsRequest(topics=None))
    yield Question("ElectLeaders everywhere", 2, m.ElectLeadersRequest(election_type=0, topic_partitions=None))
    producers = m.DescribeProducersRequestTopic(name=WIDE, partition_indexes=[0])
    yield Question("DescribeProducers", 0, m.DescribeProducersRequest(topics=[producers]))
    page = m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2000, cursor=None)
    yield Question("DescribeTopicPartitions of everything", 0, page)
    offsets = [m.AlterShareGroupOffsetsRequestPartition(partition_index=each) for each in range(PARTITIONS)]
    reset = m.AlterShareGroupOffsetsRequestTopic(topic_name=WIDE, partitions=offsets)
    yield Question("AlterShareGroupOffsets", 0, m.AlterShareGroupOffsetsRequest(group_id="reset", topics=[reset]))
    all_of_group = m.DescribeShareGroupOffsetsRequestGroup(group_id="reset", topics=None)
    yield Question("DescribeShareGroupOffsets", 1, m.DescribeShareGroupOffsetsRequest(groups=[all_of_group]))
    yield from _fetches()
    yield from _secured()


def _fetches() -> Iterator[Question]:
    """A session of every partition, which is opened with a long request and asked again with a short one."""
    partitions = [m.FetchRequestPartition(partition=each, partition_max_bytes=1024) for each in range(PARTITIONS)]
    topic = m.FetchRequestTopic(topic=WIDE, partitions=partitions)
    yield Question(
        "Fetch that opens a session", 12, m.FetchRequest(min_bytes=0, max_bytes=1 << 20, topics=[topic], rack_id="")
    )


def _secured() -> Iterator[Question]:
    """The changes are of one element, or of few: they must not cost what all the others do."""
    yield Question("DescribeAcls", 3, m.DescribeAclsRequest(**_every_rule()))
    rule = m.DeleteAclsRequest(filters=[m.DeleteAclsRequestFilter(**_every_rule(resource_name_filter="n7"))])
    yield Question("DeleteAcls of one", 3, rule, (3, m.CreateAclsRequest(creations=[_rule("n7")])))
    yield Question("CreateAcls of one", 3, m.CreateAclsRequest(creations=[_rule("n7")]), (3, rule))
    filters = [m.DeleteAclsRequestFilter(**_every_rule(resource_name_filter=f"no{each}")) for each in range(1000)]
    yield Question("DeleteAcls by many filters", 3, m.DeleteAclsRequest(filters=filters))
    of_one = m.DeleteAclsRequest(filters=[m.DeleteAclsRequestFilter(**_every_rule(principal_filter="User:x0"))])
    rules = [_rule(f"n{each}") for each in range(0, ACLS, PRINCIPALS)]
    yield Question("DeleteAcls of many", 3, of_one, (3, m.CreateAclsRequest(creations=rules)))
    yield Question("DescribeClientQuotas", 1, m.DescribeClientQuotasRequest(components=[_filter()]))
    quotas = [_quota(f"q{each}") for each in range(200)]
    yield Question("AlterClientQuotas of a few", 1, m.AlterClientQuotasRequest(entries=quotas))
    yield Question("DescribeUserScramCredentials", 0, m.DescribeUserScramCredentialsRequest(users=None))
    yield Question("AlterUserScramCredentials", 0, _users(0))
    login = "SASL_PLAINTEXT"
    yield Question("DescribeDelegationToken", 3, m.DescribeDelegationTokenRequest(owners=None), listener=login)
    renewers = [
        m.CreateDelegationTokenRequestCreatableRenewers(principal_type="User", principal_name=f"r{each}")
        for each in range(MANY)
    ]
    token = m.CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
    yield Question("CreateDelegationToken with many renewers", 3, token, listener=login)
    token = m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    yield Question("CreateDelegationToken", 3, token, listener=login)


QUESTIONS = list(questions())
# By path: the query of a request for much.
PAGE_QUERIES = {
    "/health": [""],
    "/ready": [""],
    "/metrics": [""],
    "/groups": ["", f"?group={GROUP}", f"?group={CONSUMERS}", "?group=joined", f"?group={'x' * 15_000}"],
    "/disks": ["", f"?topic={WIDE}"],
    "/explain": [f"?topic={WIDE}&partition=0&offset=0"],
    "/events": [""],
}
# By path: the body of a request for much.
PAGE_BODIES = {
    "/branch": [{"source": WIDE, "time_ms": None, "groups": True}],
    "/restore": [{"topic": "restored", "partitions": 10_000, "token": "x" * 100, "settings": {}}],
}


@pytest.fixture(scope="module", autouse=True)
def collector() -> Iterator[None]:
    with collector_of_a_broker():
        yield


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    settings = {
        "max.partitions": "60000",
        "authorizer.class.name": STANDARD,
        "super.users": f"User:ANONYMOUS;User:{USER}",
        "group.initial.rebalance.delay.ms": "0",
        "http.listener": "127.0.0.1:0",
        "auto.create.topics.enable": "false",
    }
    directory: Path = tmp_path_factory.mktemp("state")
    with app_with_tokens(directory, **settings) as running:
        with Client(running.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            _fill(running, client)
        with Client(running.app.addresses["SASL_PLAINTEXT"], TIMEOUT_S) as client:
            _log_in(client)
            # Less than one owner may have, and a few less than all.
            _pipeline(client, (frame(3, _token(f"owner{each // 900}")) for each in range(TOKENS - 100)))
        yield running


def _log_in(client: Client) -> None:
    handshake(client, "PLAIN")
    assert authenticate(client, encode(USER, USER)).error_code == 0


def _pipeline(client: Client, frames: Iterator[bytes]) -> None:
    """Send the requests without waiting for each response."""
    waiting = 0
    for each in frames:
        client.send(each)
        waiting += 1
        if waiting == PIPELINED:
            client.receive()
            waiting -= 1
    for _ in range(waiting):
        client.receive()


def _fill(app: RunningApp, client: Client) -> None:
    for key_type in (0, 1):
        client.ask(4, m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"]))
    assert client.create_topic(WIDE, PARTITIONS) == 0
    topics = [m.CreateTopicsRequestTopic(name=f"t{i}", num_partitions=1, replication_factor=1) for i in range(TOPICS)]
    assert not client.ask(7, m.CreateTopicsRequest(topics=topics, timeout_ms=60_000)).topics[-1].error_code
    _commit_in_groups(app)
    assert not client.ask(8, _committed(GROUP, WIDE, OFFSETS)).topics[0].partitions[-1].error_code
    _join(app)
    creations = [_rule(f"n{each}") for each in range(ACLS)]
    for first in range(0, ACLS, CHANGED_AT_ONCE):
        rules = m.CreateAclsRequest(creations=creations[first : first + CHANGED_AT_ONCE])
        assert not client.ask(3, rules).results[-1].error_code
    entries = [_quota(f"q{each}") for each in range(QUOTAS)]
    for first in range(0, QUOTAS, CHANGED_AT_ONCE):
        quotas = m.AlterClientQuotasRequest(entries=entries[first : first + CHANGED_AT_ONCE])
        assert not client.ask(1, quotas).entries[-1].error_code
    for first in range(0, USERS, USERS_PER_REQUEST):
        assert not client.ask(0, _users(first)).results[-1].error_code
    _pipeline(
        client,
        (
            frame(4, m.InitProducerIdRequest(transactional_id=f"tx{each}", transaction_timeout_ms=60_000))
            for each in range(TRANSACTIONS)
        ),
    )
    _produce(app)


def _each(app: RunningApp, call: Callable[[int], None], count: int) -> None:
    for first in range(0, count, CALLS_PER_TURN):
        app.call(lambda first=first: [call(number) for number in range(first, min(first + CALLS_PER_TURN, count))])  # type: ignore[misc]


def _commit_in_groups(app: RunningApp) -> None:
    def commit(number: int) -> None:
        request = CommitRequest(f"g{number}", [(WIDE, 0, 1, -1, None)], "", -1, None)
        app.app.services.groups.request(
            request.group_id, lambda shard, now_ms, token: shard.commit_offsets(now_ms, token, request)
        )

    _each(app, commit, MANY)


def _join(app: RunningApp) -> None:
    """A consumer group, and a classic one whose members wait for each other."""

    def beat(number: int) -> None:
        topics = (WIDE, *(f"t{each}" for each in range(20)))
        request = ConsumerHeartbeatRequest(
            CONSUMERS, f"m{number:05}", 0, rebalance_timeout_ms=600_000, subscribed_topics=topics
        )
        app.app.services.groups.request(
            CONSUMERS, lambda shard, now_ms, token: shard.consumer_heartbeat(now_ms, token, request)
        )

    _each(app, beat, MEMBERS)


def _produce(app: RunningApp) -> None:
    partition = app.app.services.partitions.get(WIDE, 0)

    def append(number: int) -> None:
        batch = build_batch(
            [Record(0, 0, b"k", b"v")], producer_id=1_000_000 + number, producer_epoch=0, base_sequence=0
        )
        partition.append(batch, 1)

    _each(app, append, PRODUCERS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: f"{each.name} {each.version}")
def test_a_request_for_much_does_not_hold_the_loop(app: RunningApp, question: Question) -> None:
    asked = frame(question.version, question.body)

    def ask() -> None:
        with Client(app.app.addresses[question.listener], TIMEOUT_S) as client:
            if question.listener != "PLAINTEXT":
                _log_in(client)
            answered(client, asked)

    def undo() -> None:
        if question.undo is not None:
            with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
                answered(client, frame(*question.undo))

    check(app, f"{question.name} {question.version}, of much", ask, undo)


def test_every_page_is_asked_for() -> None:
    asked = {"GET": PAGE_QUERIES.keys(), "POST": PAGE_BODIES.keys()}
    assert {(each.method, each.path) for each in PAGES} == {(way, path) for way in asked for path in asked[way]}


@pytest.mark.parametrize("path", [path + query for path, queries in PAGE_QUERIES.items() for query in queries])
def test_a_page_does_not_hold_the_loop(app: RunningApp, path: str) -> None:
    is_endless = path.startswith("/events")
    check(app, f"{GET} {path[:50]}", partial(_get, app, path, is_endless=is_endless))


@pytest.mark.parametrize(("path", "body"), [(path, each) for path, bodies in PAGE_BODIES.items() for each in bodies])
def test_a_page_that_changes_something_does_not_hold_the_loop(app: RunningApp, path: str, body: Any) -> None:
    numbers = itertools.count()

    def post() -> None:
        cluster_id = app.app.services.logs.identity.cluster_id
        told = {"cluster_id": cluster_id, "target": f"branch{next(numbers)}", **body}
        _get(app, path, body=json.dumps(told))

    check(app, f"POST {path}", post)


def _get(app: RunningApp, path: str, body: str | None = None, *, is_endless: bool = False) -> None:
    address = app.app.http_address
    assert address is not None
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        headers = {} if body is None else {"content-type": "application/json"}
        connection.request(GET if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        assert response.status < 500
        if is_endless:
            response.readline()
            return
        while response.read(1 << 20):
            pass
    finally:
        connection.close()


def test_the_survey_of_all_groups_does_not_hold_the_loop(app: RunningApp) -> None:
    check(app, "survey of all groups", lambda: app.run(app.app.survey.look(), TIMEOUT_S))
