"""Requests of which a client may do one part: that part is done, the other one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import User, app_with_rules, user
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

BOTH = ("mine", "secret")
DENIED = 29


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with app_with_rules(str(tmp_path_factory.mktemp("data")), offsets_topic_num_partitions="1") as app:
        with user(app) as admin:
            topics = [m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1) for name in BOTH]
            assert [each.error_code for each in admin.ask(5, m.CreateTopicsRequest(topics=topics)).topics] == [0, 0]
            admin.ask(4, m.FindCoordinatorRequest(coordinator_keys=["group"]))
            for operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALTER_CONFIGS):
                admin.allow("bob", operation, Kind.TOPIC, "mine")
            for operation in (Op.READ, Op.DELETE):
                admin.allow("bob", operation, Kind.GROUP, "group")
            admin.allow("bob", Op.WRITE, Kind.TRANSACTIONAL_ID, "transactional")
            admin.allow("bob", Op.CREATE, Kind.TOPIC, "new")
            admin.allow("bob", Op.CREATE, Kind.TOPIC, "bare")
            admin.allow("bob", Op.DESCRIBE_CONFIGS, Kind.TOPIC, "new")
        yield app


@pytest.fixture
def bob(app: RunningApp) -> Iterator[User]:
    with user(app, "bob") as bob:
        yield bob


def produce(acks: int = -1) -> m.ProduceRequest:
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            m.ProduceRequestTopic(
                name=name, partition_data=[m.ProduceRequestPartition(index=0, records=batch_of(b"value"))]
            )
            for name in BOTH
        ],
    )


def end(app: RunningApp, topic: str) -> int:
    return app.app.services.partitions.get(topic, 0).log.log_end_offset


def test_records_are_appended_to_the_topics_that_the_client_may_write(app: RunningApp, bob: User) -> None:
    before = end(app, "mine")
    response = bob.ask(9, produce())
    told = {topic.name: topic.partition_responses[0] for topic in response.responses}
    assert {name: each.error_code for name, each in told.items()} == {"mine": 0, "secret": DENIED}
    assert told["mine"].base_offset == before
    assert told["secret"].base_offset == -1
    assert (end(app, "mine"), end(app, "secret")) == (before + 1, 0)


def test_without_acknowledgement_the_allowed_records_are_appended_and_the_connection_closes(app: RunningApp) -> None:
    before = end(app, "mine")
    with user(app, "bob") as bob:
        bob.send(9, produce(acks=0))
        bob.client.closed_after_s()
    assert (end(app, "mine"), end(app, "secret")) == (before + 1, 0)


def test_offsets_are_committed_and_fetched_for_allowed_topics(bob: User) -> None:
    commit = m.OffsetCommitRequest(
        group_id="group",
        generation_id_or_member_epoch=-1,
        topics=[
            m.OffsetCommitRequestTopic(
                name=name, partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
            )
            for name in BOTH
        ],
    )
    for _ in range(2):
        response = bob.ask(8, commit)
        codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
        assert codes == {"mine": 0, "secret": DENIED}
    topics = [m.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in BOTH]
    fetched = bob.ask(7, m.OffsetFetchRequest(group_id="group", topics=topics))
    assert {t.name: (t.partitions[0].committed_offset, t.partitions[0].error_code) for t in fetched.topics} == {
        "mine": (7, 0),
        "secret": (-1, DENIED),
    }


def test_all_committed_offsets_are_those_of_visible_topics(app: RunningApp, bob: User) -> None:
    commit = m.OffsetCommitRequest(
        group_id="group",
        generation_id_or_member_epoch=-1,
        topics=[
            m.OffsetCommitRequestTopic(
                name=name, partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=9)]
            )
            for name in BOTH
        ],
    )
    with user(app) as admin:
        admin.ask(8, commit)
        everything = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="group", topics=None)])
        assert {topic.name for topic in admin.ask(8, everything).groups[0].topics} == set(BOTH)
        everything = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="group", topics=None)])
        assert [topic.name for topic in bob.ask(8, everything).groups[0].topics] == ["mine"]
        assert [topic.name for topic in bob.ask(7, m.OffsetFetchRequest(group_id="group", topics=None)).topics] == [
            "mine"
        ]


def test_groups_that_the_client_may_not_see_are_refused_among_others(bob: User) -> None:
    topics = [m.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in BOTH]
    groups = [m.OffsetFetchRequestGroup(group_id=name, topics=topics) for name in ("group", "other")]
    response = bob.ask(8, m.OffsetFetchRequest(groups=groups))
    assert {group.group_id: group.error_code for group in response.groups} == {"group": 0, "other": 30}
    told = {topic.name: topic.partitions[0].error_code for topic in response.groups[0].topics}
    assert told == {"mine": 0, "secret": DENIED}


@pytest.mark.parametrize("version", [4, 12, 17])
def test_a_fetch_returns_the_records_of_allowed_topics(app: RunningApp, bob: User, version: int) -> None:
    bob.ask(9, produce())
    image = app.app.services.metadata.image
    request = m.FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[
            m.FetchRequestTopic(
                topic=name,
                topic_id=image.topics[name].topic_id,
                partitions=[m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
            )
            for name in BOTH
        ],
    )
    response = bob.ask(version, request)
    codes = [topic.partitions[0].error_code for topic in response.responses]
    assert codes == [0, DENIED]
    assert response.responses[0].partitions[0].records


def test_a_topic_that_is_denied_during_a_fetch_session_is_refused_with_the_next_fetch(app: RunningApp) -> None:
    def fetch(session_id: int, epoch: int, *names: str) -> m.FetchRequest:
        partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        return m.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=session_id,
            session_epoch=epoch,
            topics=[m.FetchRequestTopic(topic=name, partitions=[partition]) for name in names],
        )

    with user(app) as admin, user(app, "carol") as carol:
        admin.allow("carol", Op.READ, Kind.TOPIC, "mine")
        begun = carol.ask(12, fetch(0, 0, "mine"))
        assert not begun.responses[0].partitions[0].error_code
        deleted = admin.ask(
            3,
            m.DeleteAclsRequest(
                filters=[
                    m.DeleteAclsRequestFilter(
                        resource_type_filter=1,
                        pattern_type_filter=1,
                        principal_filter="User:carol",
                        operation=1,
                        permission_type=1,
                    )
                ]
            ),
        )
        assert len(deleted.filter_results[0].matching_acls) == 1
        again = carol.ask(12, fetch(begun.session_id, 1))
        assert again.responses[0].partitions[0].error_code == DENIED
        assert not again.responses[0].partitions[0].records


def named(topics: Any, names: str = "name", code: str = "error_code") -> dict[str, int]:
    return {getattr(topic, names): getattr(topic, code) for topic in topics}


def test_metadata_shows_allowed_topics_and_refuses_others_alike(bob: User) -> None:
    asked = [*BOTH, "nowhere"]
    request = m.MetadataRequest(
        topics=[m.MetadataRequestTopic(name=name) for name in asked],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    response = bob.ask(9, request)
    assert named(response.topics) == {"mine": 0, "secret": DENIED, "nowhere": DENIED}
    operations = {topic.name: topic.topic_authorized_operations for topic in response.topics}
    mine = (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALTER_CONFIGS, Op.DESCRIBE, Op.DESCRIBE_CONFIGS)
    assert operations["mine"] == sum(1 << each for each in mine)
    assert operations["secret"] == operations["nowhere"]
    assert response.cluster_authorized_operations == 0
    assert [topic.name for topic in bob.ask(9, m.MetadataRequest(topics=None)).topics] == ["mine"]


def test_a_topic_that_may_be_created_is_created_on_demand(app: RunningApp, bob: User) -> None:
    with user(app) as admin:
        admin.allow("bob", Op.READ, Kind.TOPIC, "wanted")
        request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="wanted")], allow_auto_topic_creation=True)
        assert named(bob.ask(9, request).topics) == {"wanted": DENIED}
        admin.allow("bob", Op.CREATE, Kind.TOPIC, "wanted")
        assert named(bob.ask(9, request).topics) == {"wanted": 0}


def test_created_topics_show_their_settings_to_those_who_may_describe_them(bob: User) -> None:
    names = ("new", "bare", "secret2")
    topics = [m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    response = bob.ask(7, m.CreateTopicsRequest(topics=topics))
    assert named(response.topics) == {"new": 0, "bare": 0, "secret2": DENIED}
    told = {topic.name: topic for topic in response.topics}
    assert (bool(told["new"].configs), told["new"].num_partitions) == (True, 1)
    bare = told["bare"]
    assert (bare.configs, bare.num_partitions, bare.topic_config_error_code) == ([], -1, DENIED)


def test_settings_are_described_and_altered_by_resource(bob: User) -> None:
    resources = [m.DescribeConfigsRequestResource(resource_type=2, resource_name=name) for name in BOTH]
    resources.append(m.DescribeConfigsRequestResource(resource_type=4, resource_name="1"))
    response = bob.ask(4, m.DescribeConfigsRequest(resources=resources))
    assert named(response.results, "resource_name") == {"mine": 0, "secret": DENIED, "1": 31}
    altered = [
        m.IncrementalAlterConfigsRequestResource(
            resource_type=2,
            resource_name=name,
            configs=[
                m.IncrementalAlterConfigsRequestConfig(name="retention.ms", config_operation=0, value="100000000")
            ],
        )
        for name in BOTH
    ]
    response = bob.ask(1, m.IncrementalAlterConfigsRequest(resources=altered))
    assert named(response.responses, "resource_name") == {"mine": 0, "secret": DENIED}


def test_adding_a_refused_partition_to_a_transaction_adds_none(bob: User) -> None:
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="transactional",
        v3_and_below_topics=[m.AddPartitionsToTxnRequestTopic(name=name, partitions=[0]) for name in BOTH],
    )
    response = bob.ask(3, request)
    codes = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }
    assert codes == {"mine": 55, "secret": DENIED}


def test_a_group_with_its_operations(bob: User) -> None:
    request = m.DescribeGroupsRequest(groups=["group", "other"], include_authorized_operations=True)
    response = bob.ask(5, request)
    told = {group.group_id: (group.error_code, group.authorized_operations) for group in response.groups}
    operations = sum(1 << each for each in (Op.READ, Op.DELETE, Op.DESCRIBE))
    assert told["group"] == (0, operations)
    assert told["other"][0] == 30


@pytest.mark.parametrize("version", [1, 5, 6])
def test_topics_are_deleted_or_refused_one_by_one(app: RunningApp, version: int) -> None:
    with user(app) as admin, user(app, "bob") as bob:
        doomed = m.CreateTopicsRequestTopic(name="doomed", num_partitions=1, replication_factor=1)
        admin.ask(5, m.CreateTopicsRequest(topics=[doomed]))
        admin.allow("bob", Op.DELETE, Kind.TOPIC, "doomed")
        names = ["doomed", "secret"]
        request = m.DeleteTopicsRequest(
            topic_names=names if version < 6 else (),
            topics=[m.DeleteTopicsRequestTopic(name=name) for name in names] if version >= 6 else (),
            timeout_ms=10_000,
        )
        assert named(bob.ask(version, request).responses) == {"doomed": 0, "secret": DENIED}
        image = app.app.services.metadata.image
        assert ("doomed" in image.topics, "secret" in image.topics) == (False, True)
        if version >= 6:
            by_id = m.DeleteTopicsRequest(
                topics=[m.DeleteTopicsRequestTopic(name=None, topic_id=image.topics["secret"].topic_id)],
                timeout_ms=10_000,
            )
            assert named(bob.ask(version, by_id).responses) == {None: DENIED}


def test_a_request_of_many_thousand_topics_is_checked_in_slices(app: RunningApp, bob: User) -> None:
    names = [f"topic-{number}" for number in range(5_000)]
    end = [m.ListOffsetsRequestPartition(partition_index=0, timestamp=-1)]
    topics = [m.ListOffsetsRequestTopic(name=name, partitions=end) for name in (*names, "mine")]
    response = bob.ask(7, m.ListOffsetsRequest(replica_id=-1, topics=topics))
    codes = {topic.name: topic.partitions[0].error_code for topic in response.topics}
    assert codes.pop("mine") == 0
    assert set(codes) == set(names)
    assert set(codes.values()) == {DENIED}
