"""The most expensive request of every API that the limits let through: long arrays, many names, repeated parts.

Each is made for a broker with the topic `WIDE` of `WIDE_PARTITIONS` partitions, the group `GROUP`, and the id
`TRANSACTIONAL_ID`, which has the broker's first producer id. `scale` is how many elements a request has, at most
100,000 (`wire.primitives.ARRAY_LENGTH_MAX`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowstone.wire import messages as m
from tests.hostile.worst_case import WIDE, Case, topic_id
from tests.support.security.worst_user_requests import user_cases
from tests.support.sharing.worst_group_requests import consumer_group_cases
from tests.support.sharing.worst_share_requests import sharing_cases

WIDE_PARTITIONS = 1000
GROUP = "group"
TRANSACTIONAL_ID = "transactional"
TOPIC, BROKER = 2, 4
TIMEOUT_MS = 60_000


def cases() -> Iterator[Case]:
    """Of every API served but Produce; one that is named twice has more than one way to be expensive."""
    yield from _reading()
    yield from _describing()
    yield from _changing()
    yield from _securing()
    yield from _grouping()
    yield from consumer_group_cases()
    yield from _share_grouping()
    yield from (Case(*each) for each in user_cases())
    yield from _transacting()
    yield from sharing_cases()


def _wide(count: int) -> Iterator[int]:
    """So many partitions of the wide topic, again and again."""
    return (index % WIDE_PARTITIONS for index in range(count))


def _rule(name: str) -> m.CreateAclsRequestCreation:
    return m.CreateAclsRequestCreation(
        resource_type=TOPIC, resource_name=name, principal="User:x", host="*", operation=3, permission_type=3
    )


def _filter() -> m.DescribeClientQuotasRequestComponent:
    return m.DescribeClientQuotasRequestComponent(entity_type="user", match_type=2)


def _quota(user: str) -> m.AlterClientQuotasRequestEntry:
    return m.AlterClientQuotasRequestEntry(
        entity=[m.AlterClientQuotasRequestEntity(entity_type="user", entity_name=user)],
        ops=[m.AlterClientQuotasRequestOp(key="producer_byte_rate", value=1e9)],
    )


def _names(count: int, stem: str = "n") -> list[str]:
    return [f"{stem}{index}" for index in range(count)]


def _reading() -> Iterator[Case]:
    yield Case("Fetch of unknown topics", 12, lambda n: _fetch([(name, [0]) for name in _names(n)]))
    yield Case("Fetch of many partitions", 12, lambda n: _fetch([(WIDE, _wide(n))]))
    yield Case("Fetch of many partitions, no session", 4, lambda n: _fetch([(WIDE, _wide(n))]))
    yield Case("Fetch that waits", 11, lambda n: _fetch([(WIDE, range(WIDE_PARTITIONS))] * (n // 1000), wait_ms=100))
    yield Case(
        "Fetch that forgets",
        12,
        lambda n: m.FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[],
            forgotten_topics_data=[m.FetchRequestForgottenTopic(topic=name, partitions=[0]) for name in _names(n)],
            rack_id="",
        ),
    )
    for name, topics in (("many partitions", lambda n: [(WIDE, _wide(n))]), ("topics", lambda n: _each(_names(n)))):
        yield Case(f"ListOffsets of {name}", 6, lambda n, topics=topics: _list_offsets(topics(n)))
        yield Case(f"OffsetForLeaderEpoch of {name}", 4, lambda n, topics=topics: _epochs(topics(n)))
        size = {"quick": 20_000, "full": 100_000} if name == "topics" else {"quick": 50, "full": 500}
        yield Case(f"DeleteRecords of {name}", 2, lambda n, topics=topics: _delete_records(topics(n)), **size)
    yield Case(
        "ListOffsets by time",
        6,
        lambda n: _list_offsets([(WIDE, range(min(n, WIDE_PARTITIONS)))], timestamp=5),
    )


def _each(names: list[str]) -> list[tuple[str, list[int]]]:
    return [(name, [0]) for name in names]


def _fetch(topics: Any, wait_ms: int = 0) -> m.FetchRequest:
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[
            m.FetchRequestTopic(
                topic=name,
                topic_id=topic_id(name),
                partitions=[
                    m.FetchRequestPartition(partition=index, fetch_offset=0, partition_max_bytes=1024)
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def _list_offsets(topics: Any, timestamp: int = -1) -> m.ListOffsetsRequest:
    return m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[
            m.ListOffsetsRequestTopic(
                name=name,
                partitions=[
                    m.ListOffsetsRequestPartition(partition_index=index, timestamp=timestamp) for index in indexes
                ],
            )
            for name, indexes in topics
        ],
    )


def _epochs(topics: Any) -> m.OffsetForLeaderEpochRequest:
    return m.OffsetForLeaderEpochRequest(
        topics=[
            m.OffsetForLeaderEpochRequestTopic(
                topic=name,
                partitions=[
                    m.OffsetForLeaderEpochRequestPartition(partition=index, leader_epoch=0) for index in indexes
                ],
            )
            for name, indexes in topics
        ]
    )


def _delete_records(topics: Any) -> m.DeleteRecordsRequest:
    return m.DeleteRecordsRequest(
        timeout_ms=TIMEOUT_MS,
        topics=[
            m.DeleteRecordsRequestTopic(
                name=name,
                partitions=[m.DeleteRecordsRequestPartition(partition_index=index, offset=-1) for index in indexes],
            )
            for name, indexes in topics
        ],
    )


def _describing() -> Iterator[Case]:
    yield Case("Metadata of unknown topics", 12, lambda n: _metadata(_names(n), creates=False))
    yield Case("Metadata of unknown topics, old", 1, lambda n: _metadata(_names(n), creates=False))
    yield Case("Metadata of everything", 12, lambda n: m.MetadataRequest(topics=None))
    yield Case(
        "Metadata by id",
        12,
        lambda n: m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=None, topic_id=index.to_bytes(16, "big")) for index in range(1, n + 1)]
        ),
    )
    yield Case(
        "FindCoordinator of transactions", 4, lambda n: m.FindCoordinatorRequest(key_type=1, coordinator_keys=_names(n))
    )
    yield Case("FindCoordinator", 4, lambda n: m.FindCoordinatorRequest(key_type=0, coordinator_keys=_names(n)))
    for kind, names in ((TOPIC, _names), (BROKER, _names), (TOPIC, lambda n: [WIDE] * n)):
        yield Case(f"DescribeConfigs of {names(1)[0]}, type {kind}", 4, lambda n, k=kind, f=names: _configs(k, f(n)))
    yield Case("DescribeConfigs of topics", 4, lambda n: _configs(TOPIC, _names(n, "made"), synonyms=True))
    yield Case("DescribeConfigs of many keys", 4, lambda n: _configs(BROKER, ["1"], keys=_names(n)))
    yield Case(
        "DescribeLogDirs of partitions",
        4,
        lambda n: m.DescribeLogDirsRequest(
            topics=[m.DescribeLogDirsRequestTopic(topic=WIDE, partitions=list(_wide(n)))]
        ),
    )
    yield Case(
        "DescribeLogDirs of topics",
        4,
        lambda n: m.DescribeLogDirsRequest(
            topics=[m.DescribeLogDirsRequestTopic(topic=name, partitions=[0]) for name in _names(n)]
        ),
    )
    yield Case("DescribeLogDirs of everything", 4, lambda n: m.DescribeLogDirsRequest(topics=None))
    yield Case(
        "DescribeTopicPartitions",
        0,
        lambda n: m.DescribeTopicPartitionsRequest(
            topics=[m.DescribeTopicPartitionsRequestTopic(name=name) for name in _names(n)],
            response_partition_limit=2000,
            cursor=None,
        ),
    )
    for name, topics in (("partitions", lambda n: [(WIDE, list(_wide(n)))]), ("topics", lambda n: _each(_names(n)))):
        yield Case(f"DescribeProducers of {name}", 0, lambda n, topics=topics: _producers(topics(n)))
    yield Case("DescribeCluster", 2, lambda n: m.DescribeClusterRequest())
    yield Case("ListPartitionReassignments", 0, lambda n: _reassignments_under_way(None))
    yield Case("ListPartitionReassignments of topics", 0, lambda n: _reassignments_under_way(_names(n)))
    yield Case(
        "ApiVersions", 3, lambda n: m.ApiVersionsRequest(client_software_name="a" * 32000, client_software_version="1")
    )


def _producers(topics: Any) -> m.DescribeProducersRequest:
    return m.DescribeProducersRequest(
        topics=[m.DescribeProducersRequestTopic(name=name, partition_indexes=list(indexes)) for name, indexes in topics]
    )


def _metadata(names: list[str], *, creates: bool) -> m.MetadataRequest:
    topics = [m.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(topics=topics, allow_auto_topic_creation=creates)


def _configs(kind: int, names: list[str], keys: list[str] | None = None, *, synonyms: bool = False) -> Any:
    return m.DescribeConfigsRequest(
        resources=[
            m.DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for name in names
        ],
        include_synonyms=synonyms,
        include_documentation=synonyms,
    )


def _reassignments_under_way(names: list[str] | None) -> Any:
    topics = None
    if names is not None:
        topics = [m.ListPartitionReassignmentsRequestTopic(name=name, partition_indexes=[0]) for name in names]
    return m.ListPartitionReassignmentsRequest(topics=topics)


def _changing() -> Iterator[Case]:
    yield Case("Metadata that creates", 12, lambda n: _metadata(_names(n, "made"), creates=True), 1000, 10_000)
    yield Case("CreateTopics", 7, lambda n: _create(_names(n, "created")), 1000, 10_000)
    yield Case("CreateTopics of names that exist", 7, lambda n: _create(_names(n, "created")), 1000, 10_000)
    yield Case("CreateTopics that is refused", 7, lambda n: _create([f"!{each}" for each in _names(n)]))
    yield Case("CreateTopics twice", 7, lambda n: _create([WIDE + "x"] * n))
    yield Case("CreateTopics of many partitions", 7, lambda n: _create(["broad"], partitions=n), 2000, 10_000)
    yield Case("CreateTopics with settings", 7, lambda n: _create(["set"], configs=n))
    yield Case("CreateTopics with assignments", 7, _create_assigned)
    yield Case(
        "CreatePartitions",
        3,
        lambda n: m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequestTopic(name=name, count=2, assignments=None) for name in _names(n, "made")],
            timeout_ms=TIMEOUT_MS,
        ),
        500,
        5000,
    )
    for kind, names in ((TOPIC, lambda n: _names(n, "made")), (TOPIC, lambda n: [WIDE] * n), (BROKER, _names)):
        stem = names(1)[0]
        yield Case(f"AlterConfigs of {stem}, type {kind}", 2, lambda n, k=kind, f=names: _alter(k, f(n)), 2000, 20_000)
        yield Case(
            f"IncrementalAlterConfigs of {stem}, type {kind}",
            1,
            lambda n, k=kind, f=names: _alter(k, f(n), incremental=True),
            2000,
            20_000,
        )
    yield Case(
        "ElectLeaders",
        2,
        lambda n: m.ElectLeadersRequest(
            election_type=0,
            topic_partitions=[m.ElectLeadersRequestTopicPartitions(topic=WIDE, partitions=list(range(n)))],
        ),
    )
    yield Case("ElectLeaders everywhere", 2, lambda n: m.ElectLeadersRequest(election_type=0, topic_partitions=None))
    yield from (Case("AlterPartitionReassignments", 1, _reassign), Case("AlterReplicaLogDirs", 2, _move_elsewhere))
    yield Case("UpdateFeatures", 2, lambda n: m.UpdateFeaturesRequest(feature_updates=_features(n)))
    yield Case("UnregisterBroker", 0, lambda n: m.UnregisterBrokerRequest(broker_id=77))
    yield Case("InitProducerId", 4, lambda n: m.InitProducerIdRequest(transactional_id=None))
    yield Case("DeleteTopics of unknown", 6, lambda n: _delete(_names(n)))
    yield Case("DeleteTopics", 6, lambda n: _delete(_names(n, "made")), 1000, 10_000)
    yield Case("DeleteTopics of many partitions", 6, lambda n: _delete(["broad"]))


def _create(names: list[str], partitions: int = 1, configs: int = 0) -> m.CreateTopicsRequest:
    return m.CreateTopicsRequest(
        topics=[
            m.CreateTopicsRequestTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                assignments=[],
                configs=[m.CreateTopicsRequestConfig(name=each, value="1") for each in _names(configs)],
            )
            for name in names
        ],
        timeout_ms=TIMEOUT_MS,
    )


def _create_assigned(partitions: int) -> m.CreateTopicsRequest:
    assignments = [
        m.CreateTopicsRequestAssignment(partition_index=index, broker_ids=[1]) for index in range(partitions)
    ]
    topic = m.CreateTopicsRequestTopic(
        name="assigned", num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[]
    )
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=True)


def _features(count: int) -> list[m.UpdateFeaturesRequestFeatureUpdate]:
    return [m.UpdateFeaturesRequestFeatureUpdate(feature=name, max_version_level=1) for name in _names(count)]


def _delete(names: list[str]) -> m.DeleteTopicsRequest:
    return m.DeleteTopicsRequest(
        topics=[m.DeleteTopicsRequestTopic(name=name) for name in names], timeout_ms=TIMEOUT_MS
    )


def _alter(kind: int, names: list[str], *, incremental: bool = False) -> Any:
    if incremental:
        return m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequestResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        m.IncrementalAlterConfigsRequestConfig(name="retention.ms", config_operation=0, value="7")
                    ],
                )
                for name in names
            ]
        )
    return m.AlterConfigsRequest(
        resources=[
            m.AlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=[m.AlterConfigsRequestConfig(name="retention.ms", value="8")],
            )
            for name in names
        ]
    )


def _move_elsewhere(count: int) -> m.AlterReplicaLogDirsRequest:
    topic = m.AlterReplicaLogDirsRequestTopic(name=WIDE, partitions=list(_wide(count)))
    return m.AlterReplicaLogDirsRequest(dirs=[m.AlterReplicaLogDirsRequestDir(path="/nowhere", topics=[topic])])


def _reassign(count: int) -> m.AlterPartitionReassignmentsRequest:
    return m.AlterPartitionReassignmentsRequest(
        timeout_ms=TIMEOUT_MS,
        topics=[
            m.AlterPartitionReassignmentsRequestTopic(
                name=WIDE,
                partitions=[
                    m.AlterPartitionReassignmentsRequestPartition(partition_index=index, replicas=[1])
                    for index in range(count)
                ],
            )
        ],
    )


def _securing() -> Iterator[Case]:
    yield Case("CreateAcls", 3, lambda n: m.CreateAclsRequest(creations=[_rule(name) for name in _names(n)]))
    yield Case("DescribeAcls", 3, lambda n: m.DescribeAclsRequest(resource_name_filter="x" * min(n, 30_000)))
    yield Case("DescribeClientQuotas", 1, lambda n: m.DescribeClientQuotasRequest(components=[_filter()] * n))
    yield Case("AlterClientQuotas", 1, lambda n: m.AlterClientQuotasRequest(entries=[*map(_quota, _names(n))]))
    yield Case("DeleteAcls", 3, lambda n: m.DeleteAclsRequest(filters=[m.DeleteAclsRequestFilter()] * n))


def _grouping() -> Iterator[Case]:
    for version in (7, 2):
        yield Case("OffsetCommit of many partitions", version, lambda n: _commit([(WIDE, _wide(n))]))
    yield Case("OffsetCommit of unknown topics", 8, lambda n: _commit(_each(_names(n))))
    yield Case("OffsetCommit of many topics", 8, lambda n: _commit([(WIDE, [0])] * n))
    yield Case("OffsetFetch of many partitions", 7, lambda n: _fetch_offsets([(WIDE, list(_wide(n)))]))
    yield Case("OffsetFetch of many partitions, old", 1, lambda n: _fetch_offsets([(WIDE, list(_wide(n)))]))
    yield Case("OffsetFetch of many topics", 7, lambda n: _fetch_offsets(_each(_names(n))))
    yield Case("OffsetFetch of all", 7, lambda n: _fetch_offsets(None))
    yield Case(
        "OffsetFetch of many groups",
        8,
        lambda n: m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequestGroup(group_id=name, topics=None) for name in _names(n)]
        ),
    )
    yield Case(
        "OffsetFetch of a group many times",
        8,
        lambda n: m.OffsetFetchRequest(
            groups=[m.OffsetFetchRequestGroup(group_id=GROUP, topics=None) for name in range(n // 1000)]
        ),
    )
    yield Case(
        "OffsetDelete",
        0,
        lambda n: m.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                m.OffsetDeleteRequestTopic(
                    name=WIDE, partitions=[m.OffsetDeleteRequestPartition(partition_index=index) for index in _wide(n)]
                )
            ],
        ),
    )
    yield Case("DescribeGroups", 5, lambda n: m.DescribeGroupsRequest(groups=_names(n)))
    yield Case("DescribeGroups of one", 5, lambda n: m.DescribeGroupsRequest(groups=[GROUP] * n))
    yield Case("DeleteGroups", 2, lambda n: m.DeleteGroupsRequest(groups_names=_names(n)))
    yield Case("ListGroups", 5, lambda n: m.ListGroupsRequest(states_filter=_names(n), types_filter=_names(n)))
    yield Case("JoinGroup", 3, _join)
    yield Case("JoinGroup with long protocols", 3, lambda n: _join(4, bytes(20 * n)))
    yield Case(
        "SyncGroup",
        4,
        lambda n: m.SyncGroupRequest(
            group_id=GROUP,
            generation_id=1,
            member_id="nobody",
            assignments=[m.SyncGroupRequestAssignment(member_id=name, assignment=b"a") for name in _names(n)],
        ),
    )
    yield Case("Heartbeat", 4, lambda n: m.HeartbeatRequest(group_id="g" * 32000, generation_id=1, member_id="m"))
    yield Case(
        "LeaveGroup",
        5,
        lambda n: m.LeaveGroupRequest(
            group_id=GROUP, members=[m.LeaveGroupRequestMember(member_id=name) for name in _names(n)]
        ),
    )


def _share_grouping() -> Iterator[Case]:
    yield Case("ShareGroupHeartbeat that joins", 1, lambda n: _share_heartbeat(0, _names(n)))
    yield Case("ShareGroupHeartbeat that leaves", 1, lambda n: _share_heartbeat(-1, None))
    yield Case("ShareGroupDescribe", 1, lambda n: m.ShareGroupDescribeRequest(group_ids=_names(n)))
    yield Case("DescribeShareGroupOffsets", 1, _describe_share_offsets)
    yield Case("AlterShareGroupOffsets", 0, _alter_share_offsets)
    yield Case(
        "DeleteShareGroupOffsets",
        0,
        lambda n: m.DeleteShareGroupOffsetsRequest(
            group_id="share", topics=[m.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in _names(n)]
        ),
    )


def _describe_share_offsets(count: int) -> m.DescribeShareGroupOffsetsRequest:
    topics = [m.DescribeShareGroupOffsetsRequestTopic(topic_name=WIDE, partitions=list(_wide(count)))]
    return m.DescribeShareGroupOffsetsRequest(
        groups=[m.DescribeShareGroupOffsetsRequestGroup(group_id="share", topics=topics)]
    )


def _alter_share_offsets(count: int) -> m.AlterShareGroupOffsetsRequest:
    partitions = [
        m.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0) for index in _wide(count)
    ]
    topics = [m.AlterShareGroupOffsetsRequestTopic(topic_name=WIDE, partitions=partitions)]
    return m.AlterShareGroupOffsetsRequest(group_id="share", topics=topics)


def _share_heartbeat(member_epoch: int, topics: list[str] | None) -> m.ShareGroupHeartbeatRequest:
    return m.ShareGroupHeartbeatRequest(
        group_id="share", member_id="m", member_epoch=member_epoch, subscribed_topic_names=topics
    )


def _transacting() -> Iterator[Case]:
    yield Case("AddPartitionsToTxn of many partitions", 3, lambda n: _add_partitions([(WIDE, list(_wide(n)))]))
    yield Case("AddPartitionsToTxn of unknown topics", 3, lambda n: _add_partitions(_each(_names(n))))
    for verify_only in (False, True):
        yield Case(
            f"AddPartitionsToTxn of many transactions, verify_only={verify_only}",
            5,
            lambda n, verifies=verify_only: m.AddPartitionsToTxnRequest(
                transactions=[_transaction(name, [(WIDE, [0])], verify_only=verifies) for name in _names(n)]
            ),
        )
    yield Case(
        "AddPartitionsToTxn of one large transaction",
        5,
        lambda n: m.AddPartitionsToTxnRequest(
            transactions=[_transaction("large", [(WIDE, list(_wide(n)))], verify_only=False)]
        ),
    )
    yield Case("AddOffsetsToTxn", 4, lambda n: m.AddOffsetsToTxnRequest(transactional_id="n" * 32000, group_id=GROUP))
    for topics in (lambda n: [(WIDE, list(_wide(n)))], lambda n: _each(_names(n))):
        yield Case(f"TxnOffsetCommit in {topics(1)[0][0]}", 5, lambda n, f=topics: _commit_in_transaction(f(n)))
    yield Case(
        "EndTxn of many partitions",
        4,
        lambda n: m.EndTxnRequest(transactional_id=TRANSACTIONAL_ID, producer_id=0, producer_epoch=0, committed=True),
    )
    yield Case(
        "InitProducerId of a transaction",
        4,
        lambda n: m.InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=TIMEOUT_MS),
    )
    yield Case("EndTxn of a long name", 5, lambda n: m.EndTxnRequest(transactional_id="n" * 32000, committed=True))
    for topics in (lambda n: [(WIDE, list(_wide(n)))], lambda n: _each(_names(n))):
        yield Case(f"WriteTxnMarkers in {topics(1)[0][0]}", 2, lambda n, f=topics: _markers([f(n)]), 2000, 20_000)
    yield Case("WriteTxnMarkers of many transactions", 2, lambda n: _markers([[(WIDE, [0])]] * n), 2000, 20_000)
    yield Case("DescribeTransactions", 0, lambda n: m.DescribeTransactionsRequest(transactional_ids=_names(n)))
    yield Case(
        "ListTransactions",
        2,
        lambda n: m.ListTransactionsRequest(state_filters=_names(n), producer_id_filters=list(range(n))),
    )


def _commit_in_transaction(topics: Any) -> m.TxnOffsetCommitRequest:
    return m.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=GROUP,
        topics=[
            m.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[m.TxnOffsetCommitRequestPartition(partition_index=index) for index in indexes],
            )
            for name, indexes in topics
        ],
    )


def _transaction(name: str, topics: Any, *, verify_only: bool) -> m.AddPartitionsToTxnRequestTransaction:
    return m.AddPartitionsToTxnRequestTransaction(transactional_id=name, verify_only=verify_only, topics=_added(topics))


def _add_partitions(topics: Any) -> m.AddPartitionsToTxnRequest:
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TRANSACTIONAL_ID,
        v3_and_below_producer_id=0,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=_added(topics),
    )


def _added(topics: Any) -> list[m.AddPartitionsToTxnRequestTopic]:
    return [m.AddPartitionsToTxnRequestTopic(name=name, partitions=indexes) for name, indexes in topics]


def _markers(transactions: Any) -> m.WriteTxnMarkersRequest:
    return m.WriteTxnMarkersRequest(
        markers=[
            m.WriteTxnMarkersRequestMarker(
                producer_id=number,
                topics=[m.WriteTxnMarkersRequestTopic(name=name, partition_indexes=each) for name, each in topics],
            )
            for number, topics in enumerate(transactions)
        ]
    )


def _commit(topics: Any) -> m.OffsetCommitRequest:
    return m.OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            m.OffsetCommitRequestTopic(
                name=name,
                topic_id=topic_id(name),
                partitions=[
                    m.OffsetCommitRequestPartition(partition_index=index, committed_offset=0, committed_metadata="")
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ],
    )


def _fetch_offsets(topics: Any) -> m.OffsetFetchRequest:
    return m.OffsetFetchRequest(
        group_id=GROUP,
        topics=None
        if topics is None
        else [m.OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for name, indexes in topics],
    )


def _join(count: int, metadata: bytes = b"m") -> m.JoinGroupRequest:
    return m.JoinGroupRequest(
        group_id="joined",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1000,
        member_id="",
        protocol_type="consumer",
        protocols=[m.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in _names(count)],
    )
