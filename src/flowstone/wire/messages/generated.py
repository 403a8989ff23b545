"""Every message of the protocol as a typed class. Generated from the schema text: do not edit.

Regenerate with `python -m flowstone.wire.generate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.types import Bytes
from flowstone.wire.message import Message, Records


class ProduceRequestPartition(Message):
    __slots__ = ("index", "records")

    def __init__(
        self,
        *,
        index: int = 0,
        records: Bytes | None = None,
    ) -> None:
        self.index = index
        self.records = records


class ProduceRequestTopic(Message):
    __slots__ = ("name", "topic_id", "partition_data")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partition_data: Sequence[ProduceRequestPartition] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_data = partition_data


class ProduceRequest(Message):
    __slots__ = ("transactional_id", "acks", "timeout_ms", "topic_data")

    def __init__(
        self,
        *,
        transactional_id: str | None = None,
        acks: int = 0,
        timeout_ms: int = 0,
        topic_data: Sequence[ProduceRequestTopic] = (),
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic_data = topic_data


class ProduceResponseRecordError(Message):
    __slots__ = ("batch_index", "batch_index_error_message")

    def __init__(
        self,
        *,
        batch_index: int = 0,
        batch_index_error_message: str | None = None,
    ) -> None:
        self.batch_index = batch_index
        self.batch_index_error_message = batch_index_error_message


class ProduceResponseLeader(Message):
    __slots__ = ("leader_id", "leader_epoch")

    def __init__(
        self,
        *,
        leader_id: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class ProduceResponsePartition(Message):
    __slots__ = (
        "index",
        "error_code",
        "base_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
        "error_message",
        "current_leader",
    )

    def __init__(
        self,
        *,
        index: int = 0,
        error_code: int = 0,
        base_offset: int = 0,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: Sequence[ProduceResponseRecordError] = (),
        error_message: str | None = None,
        current_leader: ProduceResponseLeader | None = None,
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors = record_errors
        self.error_message = error_message
        self.current_leader = current_leader


class ProduceResponseTopic(Message):
    __slots__ = ("name", "topic_id", "partition_responses")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partition_responses: Sequence[ProduceResponsePartition] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_responses = partition_responses


class ProduceResponseNodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port", "rack")

    def __init__(
        self,
        *,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class ProduceResponse(Message):
    __slots__ = ("responses", "throttle_time_ms", "node_endpoints")

    def __init__(
        self,
        *,
        responses: Sequence[ProduceResponseTopic] = (),
        throttle_time_ms: int = 0,
        node_endpoints: Sequence[ProduceResponseNodeEndpoint] = (),
    ) -> None:
        self.responses = responses
        self.throttle_time_ms = throttle_time_ms
        self.node_endpoints = node_endpoints


class FetchRequestReplicaState(Message):
    __slots__ = ("replica_id", "replica_epoch")

    def __init__(
        self,
        *,
        replica_id: int = -1,
        replica_epoch: int = -1,
    ) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch


class FetchRequestPartition(Message):
    __slots__ = (
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
        "replica_directory_id",
        "high_watermark",
    )

    def __init__(
        self,
        *,
        partition: int = 0,
        current_leader_epoch: int = -1,
        fetch_offset: int = 0,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
        partition_max_bytes: int = 0,
        replica_directory_id: bytes = bytes(16),
        high_watermark: int = 9223372036854775807,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.partition_max_bytes = partition_max_bytes
        self.replica_directory_id = replica_directory_id
        self.high_watermark = high_watermark


class FetchRequestTopic(Message):
    __slots__ = ("topic", "topic_id", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[FetchRequestPartition] = (),
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions


class FetchRequestForgottenTopic(Message):
    __slots__ = ("topic", "topic_id", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions


class FetchRequest(Message):
    __slots__ = (
        "cluster_id",
        "replica_id",
        "replica_state",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "session_id",
        "session_epoch",
        "topics",
        "forgotten_topics_data",
        "rack_id",
    )

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        replica_id: int = -1,
        replica_state: FetchRequestReplicaState | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 2147483647,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        topics: Sequence[FetchRequestTopic] = (),
        forgotten_topics_data: Sequence[FetchRequestForgottenTopic] = (),
        rack_id: str = "",
    ) -> None:
        self.cluster_id = cluster_id
        self.replica_id = replica_id
        self.replica_state = replica_state
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.topics = topics
        self.forgotten_topics_data = forgotten_topics_data
        self.rack_id = rack_id


class FetchResponseEpochEndOffset(Message):
    __slots__ = ("epoch", "end_offset")

    def __init__(
        self,
        *,
        epoch: int = -1,
        end_offset: int = -1,
    ) -> None:
        self.epoch = epoch
        self.end_offset = end_offset


class FetchResponseLeader(Message):
    __slots__ = ("leader_id", "leader_epoch")

    def __init__(
        self,
        *,
        leader_id: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class FetchResponseSnapshotId(Message):
    __slots__ = ("end_offset", "epoch")

    def __init__(
        self,
        *,
        end_offset: int = -1,
        epoch: int = -1,
    ) -> None:
        self.end_offset = end_offset
        self.epoch = epoch


class FetchResponseAbortedTransaction(Message):
    __slots__ = ("producer_id", "first_offset")

    def __init__(
        self,
        *,
        producer_id: int = 0,
        first_offset: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset


class FetchResponsePartition(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "diverging_epoch",
        "current_leader",
        "snapshot_id",
        "aborted_transactions",
        "preferred_read_replica",
        "records",
    )

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        high_watermark: int = 0,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
        diverging_epoch: FetchResponseEpochEndOffset | None = None,
        current_leader: FetchResponseLeader | None = None,
        snapshot_id: FetchResponseSnapshotId | None = None,
        aborted_transactions: Sequence[FetchResponseAbortedTransaction] | None = (),
        preferred_read_replica: int = -1,
        records: Records | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.diverging_epoch = diverging_epoch
        self.current_leader = current_leader
        self.snapshot_id = snapshot_id
        self.aborted_transactions = aborted_transactions
        self.preferred_read_replica = preferred_read_replica
        self.records = records


class FetchResponseTopic(Message):
    __slots__ = ("topic", "topic_id", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[FetchResponsePartition] = (),
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions


class FetchResponseNodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port", "rack")

    def __init__(
        self,
        *,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class FetchResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "session_id", "responses", "node_endpoints")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        session_id: int = 0,
        responses: Sequence[FetchResponseTopic] = (),
        node_endpoints: Sequence[FetchResponseNodeEndpoint] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.session_id = session_id
        self.responses = responses
        self.node_endpoints = node_endpoints


class ListOffsetsRequestPartition(Message):
    __slots__ = ("partition_index", "current_leader_epoch", "timestamp")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        current_leader_epoch: int = -1,
        timestamp: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.current_leader_epoch = current_leader_epoch
        self.timestamp = timestamp


class ListOffsetsRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[ListOffsetsRequestPartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class ListOffsetsRequest(Message):
    __slots__ = ("replica_id", "isolation_level", "topics", "timeout_ms")

    def __init__(
        self,
        *,
        replica_id: int = 0,
        isolation_level: int = 0,
        topics: Sequence[ListOffsetsRequestTopic] = (),
        timeout_ms: int = 0,
    ) -> None:
        self.replica_id = replica_id
        self.isolation_level = isolation_level
        self.topics = topics
        self.timeout_ms = timeout_ms


class ListOffsetsResponsePartition(Message):
    __slots__ = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        timestamp: int = -1,
        offset: int = -1,
        leader_epoch: int = -1,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.timestamp = timestamp
        self.offset = offset
        self.leader_epoch = leader_epoch


class ListOffsetsResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[ListOffsetsResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class ListOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[ListOffsetsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class MetadataRequestTopic(Message):
    __slots__ = ("topic_id", "name")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        name: str | None = "",
    ) -> None:
        self.topic_id = topic_id
        self.name = name


class MetadataRequest(Message):
    __slots__ = (
        "topics",
        "allow_auto_topic_creation",
        "include_cluster_authorized_operations",
        "include_topic_authorized_operations",
    )

    def __init__(
        self,
        *,
        topics: Sequence[MetadataRequestTopic] | None = (),
        allow_auto_topic_creation: bool = True,
        include_cluster_authorized_operations: bool = False,
        include_topic_authorized_operations: bool = False,
    ) -> None:
        self.topics = topics
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.include_topic_authorized_operations = include_topic_authorized_operations


class MetadataResponseBroker(Message):
    __slots__ = ("node_id", "host", "port", "rack")

    def __init__(
        self,
        *,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class MetadataResponsePartition(Message):
    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "offline_replicas",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        partition_index: int = 0,
        leader_id: int = 0,
        leader_epoch: int = -1,
        replica_nodes: Sequence[int] = (),
        isr_nodes: Sequence[int] = (),
        offline_replicas: Sequence[int] = (),
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replica_nodes = replica_nodes
        self.isr_nodes = isr_nodes
        self.offline_replicas = offline_replicas


class MetadataResponseTopic(Message):
    __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

    def __init__(
        self,
        *,
        error_code: int = 0,
        name: str | None = "",
        topic_id: bytes = bytes(16),
        is_internal: bool = False,
        partitions: Sequence[MetadataResponsePartition] = (),
        topic_authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions = partitions
        self.topic_authorized_operations = topic_authorized_operations


class MetadataResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "brokers",
        "cluster_id",
        "controller_id",
        "topics",
        "cluster_authorized_operations",
        "error_code",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        brokers: Sequence[MetadataResponseBroker] = (),
        cluster_id: str | None = None,
        controller_id: int = -1,
        topics: Sequence[MetadataResponseTopic] = (),
        cluster_authorized_operations: int = -2147483648,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.brokers = brokers
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.topics = topics
        self.cluster_authorized_operations = cluster_authorized_operations
        self.error_code = error_code


class OffsetCommitRequestPartition(Message):
    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        committed_metadata: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.committed_metadata = committed_metadata


class OffsetCommitRequestTopic(Message):
    __slots__ = ("name", "topic_id", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[OffsetCommitRequestPartition] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class OffsetCommitRequest(Message):
    __slots__ = (
        "group_id",
        "generation_id_or_member_epoch",
        "member_id",
        "group_instance_id",
        "retention_time_ms",
        "topics",
    )

    def __init__(
        self,
        *,
        group_id: str = "",
        generation_id_or_member_epoch: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        retention_time_ms: int = -1,
        topics: Sequence[OffsetCommitRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.generation_id_or_member_epoch = generation_id_or_member_epoch
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.retention_time_ms = retention_time_ms
        self.topics = topics


class OffsetCommitResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetCommitResponseTopic(Message):
    __slots__ = ("name", "topic_id", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[OffsetCommitResponsePartition] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class OffsetCommitResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[OffsetCommitResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class OffsetFetchRequestTopic(Message):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str = "",
        partition_indexes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class OffsetFetchRequestTopics(Message):
    __slots__ = ("name", "topic_id", "partition_indexes")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partition_indexes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partition_indexes = partition_indexes


class OffsetFetchRequestGroup(Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        member_id: str | None = None,
        member_epoch: int = -1,
        topics: Sequence[OffsetFetchRequestTopics] | None = (),
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.topics = topics


class OffsetFetchRequest(Message):
    __slots__ = ("group_id", "topics", "groups", "require_stable")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[OffsetFetchRequestTopic] | None = (),
        groups: Sequence[OffsetFetchRequestGroup] = (),
        require_stable: bool = False,
    ) -> None:
        self.group_id = group_id
        self.topics = topics
        self.groups = groups
        self.require_stable = require_stable


class OffsetFetchResponsePartition(Message):
    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        metadata: str | None = "",
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.metadata = metadata
        self.error_code = error_code


class OffsetFetchResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[OffsetFetchResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class OffsetFetchResponseTopics(Message):
    __slots__ = ("name", "topic_id", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[OffsetFetchResponsePartition] = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class OffsetFetchResponseGroup(Message):
    __slots__ = ("group_id", "topics", "error_code")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[OffsetFetchResponseTopics] = (),
        error_code: int = 0,
    ) -> None:
        self.group_id = group_id
        self.topics = topics
        self.error_code = error_code


class OffsetFetchResponse(Message):
    __slots__ = ("throttle_time_ms", "topics", "error_code", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[OffsetFetchResponseTopic] = (),
        error_code: int = 0,
        groups: Sequence[OffsetFetchResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
        self.error_code = error_code
        self.groups = groups


class FindCoordinatorRequest(Message):
    __slots__ = ("key", "key_type", "coordinator_keys")

    def __init__(
        self,
        *,
        key: str = "",
        key_type: int = 0,
        coordinator_keys: Sequence[str] = (),
    ) -> None:
        self.key = key
        self.key_type = key_type
        self.coordinator_keys = coordinator_keys


class FindCoordinatorResponseCoordinator(Message):
    __slots__ = ("key", "node_id", "host", "port", "error_code", "error_message")

    def __init__(
        self,
        *,
        key: str = "",
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.host = host
        self.port = port
        self.error_code = error_code
        self.error_message = error_message


class FindCoordinatorResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "node_id", "host", "port", "coordinators")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        coordinators: Sequence[FindCoordinatorResponseCoordinator] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.node_id = node_id
        self.host = host
        self.port = port
        self.coordinators = coordinators


class JoinGroupRequestProtocol(Message):
    __slots__ = ("name", "metadata")

    def __init__(
        self,
        *,
        name: str = "",
        metadata: Bytes = b"",
    ) -> None:
        self.name = name
        self.metadata = metadata


class JoinGroupRequest(Message):
    __slots__ = (
        "group_id",
        "session_timeout_ms",
        "rebalance_timeout_ms",
        "member_id",
        "group_instance_id",
        "protocol_type",
        "protocols",
        "reason",
    )

    def __init__(
        self,
        *,
        group_id: str = "",
        session_timeout_ms: int = 0,
        rebalance_timeout_ms: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str = "",
        protocols: Sequence[JoinGroupRequestProtocol] = (),
        reason: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.reason = reason


class JoinGroupResponseMember(Message):
    __slots__ = ("member_id", "group_instance_id", "metadata")

    def __init__(
        self,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        metadata: Bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.metadata = metadata


class JoinGroupResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "generation_id",
        "protocol_type",
        "protocol_name",
        "leader",
        "skip_assignment",
        "member_id",
        "members",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        generation_id: int = -1,
        protocol_type: str | None = None,
        protocol_name: str | None = "",
        leader: str = "",
        skip_assignment: bool = False,
        member_id: str = "",
        members: Sequence[JoinGroupResponseMember] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader = leader
        self.skip_assignment = skip_assignment
        self.member_id = member_id
        self.members = members


class HeartbeatRequest(Message):
    __slots__ = ("group_id", "generation_id", "member_id", "group_instance_id")

    def __init__(
        self,
        *,
        group_id: str = "",
        generation_id: int = 0,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id


class HeartbeatResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code


class LeaveGroupRequestMember(Message):
    __slots__ = ("member_id", "group_instance_id", "reason")

    def __init__(
        self,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.reason = reason


class LeaveGroupRequest(Message):
    __slots__ = ("group_id", "member_id", "members")

    def __init__(
        self,
        *,
        group_id: str = "",
        member_id: str = "",
        members: Sequence[LeaveGroupRequestMember] = (),
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.members = members


class LeaveGroupResponseMember(Message):
    __slots__ = ("member_id", "group_instance_id", "error_code")

    def __init__(
        self,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        error_code: int = 0,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.error_code = error_code


class LeaveGroupResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "members")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        members: Sequence[LeaveGroupResponseMember] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.members = members


class SyncGroupRequestAssignment(Message):
    __slots__ = ("member_id", "assignment")

    def __init__(
        self,
        *,
        member_id: str = "",
        assignment: Bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.assignment = assignment


class SyncGroupRequest(Message):
    __slots__ = (
        "group_id",
        "generation_id",
        "member_id",
        "group_instance_id",
        "protocol_type",
        "protocol_name",
        "assignments",
    )

    def __init__(
        self,
        *,
        group_id: str = "",
        generation_id: int = 0,
        member_id: str = "",
        group_instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignments: Sequence[SyncGroupRequestAssignment] = (),
    ) -> None:
        self.group_id = group_id
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.assignments = assignments


class SyncGroupResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "protocol_type", "protocol_name", "assignment")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        assignment: Bytes = b"",
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.assignment = assignment


class DescribeGroupsRequest(Message):
    __slots__ = ("groups", "include_authorized_operations")

    def __init__(
        self,
        *,
        groups: Sequence[str] = (),
        include_authorized_operations: bool = False,
    ) -> None:
        self.groups = groups
        self.include_authorized_operations = include_authorized_operations


class DescribeGroupsResponseMember(Message):
    __slots__ = ("member_id", "group_instance_id", "client_id", "client_host", "member_metadata", "member_assignment")

    def __init__(
        self,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        member_metadata: Bytes = b"",
        member_assignment: Bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.member_metadata = member_metadata
        self.member_assignment = member_assignment


class DescribeGroupsResponseGroup(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "protocol_type",
        "protocol_data",
        "members",
        "authorized_operations",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        protocol_type: str = "",
        protocol_data: str = "",
        members: Sequence[DescribeGroupsResponseMember] = (),
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.protocol_type = protocol_type
        self.protocol_data = protocol_data
        self.members = members
        self.authorized_operations = authorized_operations


class DescribeGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        groups: Sequence[DescribeGroupsResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups


class ListGroupsRequest(Message):
    __slots__ = ("states_filter", "types_filter")

    def __init__(
        self,
        *,
        states_filter: Sequence[str] = (),
        types_filter: Sequence[str] = (),
    ) -> None:
        self.states_filter = states_filter
        self.types_filter = types_filter


class ListGroupsResponseGroup(Message):
    __slots__ = ("group_id", "protocol_type", "group_state", "group_type")

    def __init__(
        self,
        *,
        group_id: str = "",
        protocol_type: str = "",
        group_state: str = "",
        group_type: str = "",
    ) -> None:
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.group_state = group_state
        self.group_type = group_type


class ListGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        groups: Sequence[ListGroupsResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.groups = groups


class SaslHandshakeRequest(Message):
    __slots__ = ("mechanism",)

    def __init__(
        self,
        *,
        mechanism: str = "",
    ) -> None:
        self.mechanism = mechanism


class SaslHandshakeResponse(Message):
    __slots__ = ("error_code", "mechanisms")

    def __init__(
        self,
        *,
        error_code: int = 0,
        mechanisms: Sequence[str] = (),
    ) -> None:
        self.error_code = error_code
        self.mechanisms = mechanisms


class ApiVersionsRequest(Message):
    __slots__ = ("client_software_name", "client_software_version")

    def __init__(
        self,
        *,
        client_software_name: str = "",
        client_software_version: str = "",
    ) -> None:
        self.client_software_name = client_software_name
        self.client_software_version = client_software_version


class ApiVersionsResponseApiVersion(Message):
    __slots__ = ("api_key", "min_version", "max_version")

    def __init__(
        self,
        *,
        api_key: int = 0,
        min_version: int = 0,
        max_version: int = 0,
    ) -> None:
        self.api_key = api_key
        self.min_version = min_version
        self.max_version = max_version


class ApiVersionsResponseSupportedFeature(Message):
    __slots__ = ("name", "min_version", "max_version")

    def __init__(
        self,
        *,
        name: str = "",
        min_version: int = 0,
        max_version: int = 0,
    ) -> None:
        self.name = name
        self.min_version = min_version
        self.max_version = max_version


class ApiVersionsResponseFinalizedFeature(Message):
    __slots__ = ("name", "max_version_level", "min_version_level")

    def __init__(
        self,
        *,
        name: str = "",
        max_version_level: int = 0,
        min_version_level: int = 0,
    ) -> None:
        self.name = name
        self.max_version_level = max_version_level
        self.min_version_level = min_version_level


class ApiVersionsResponse(Message):
    __slots__ = (
        "error_code",
        "api_keys",
        "throttle_time_ms",
        "supported_features",
        "finalized_features_epoch",
        "finalized_features",
        "zk_migration_ready",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        api_keys: Sequence[ApiVersionsResponseApiVersion] = (),
        throttle_time_ms: int = 0,
        supported_features: Sequence[ApiVersionsResponseSupportedFeature] = (),
        finalized_features_epoch: int = -1,
        finalized_features: Sequence[ApiVersionsResponseFinalizedFeature] = (),
        zk_migration_ready: bool = False,
    ) -> None:
        self.error_code = error_code
        self.api_keys = api_keys
        self.throttle_time_ms = throttle_time_ms
        self.supported_features = supported_features
        self.finalized_features_epoch = finalized_features_epoch
        self.finalized_features = finalized_features
        self.zk_migration_ready = zk_migration_ready


class CreateTopicsRequestAssignment(Message):
    __slots__ = ("partition_index", "broker_ids")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        broker_ids: Sequence[int] = (),
    ) -> None:
        self.partition_index = partition_index
        self.broker_ids = broker_ids


class CreateTopicsRequestConfig(Message):
    __slots__ = ("name", "value")

    def __init__(
        self,
        *,
        name: str = "",
        value: str | None = "",
    ) -> None:
        self.name = name
        self.value = value


class CreateTopicsRequestTopic(Message):
    __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs")

    def __init__(
        self,
        *,
        name: str = "",
        num_partitions: int = 0,
        replication_factor: int = 0,
        assignments: Sequence[CreateTopicsRequestAssignment] = (),
        configs: Sequence[CreateTopicsRequestConfig] = (),
    ) -> None:
        self.name = name
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.assignments = assignments
        self.configs = configs


class CreateTopicsRequest(Message):
    __slots__ = ("topics", "timeout_ms", "validate_only")

    def __init__(
        self,
        *,
        topics: Sequence[CreateTopicsRequestTopic] = (),
        timeout_ms: int = 60000,
        validate_only: bool = False,
    ) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreateTopicsResponseConfig(Message):
    __slots__ = ("name", "value", "read_only", "config_source", "is_sensitive")

    def __init__(
        self,
        *,
        name: str = "",
        value: str | None = "",
        read_only: bool = False,
        config_source: int = -1,
        is_sensitive: bool = False,
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_sensitive = is_sensitive


class CreateTopicsResponseTopic(Message):
    __slots__ = (
        "name",
        "topic_id",
        "error_code",
        "error_message",
        "topic_config_error_code",
        "num_partitions",
        "replication_factor",
        "configs",
    )

    def __init__(
        self,
        *,
        name: str = "",
        topic_id: bytes = bytes(16),
        error_code: int = 0,
        error_message: str | None = "",
        topic_config_error_code: int = 0,
        num_partitions: int = -1,
        replication_factor: int = -1,
        configs: Sequence[CreateTopicsResponseConfig] | None = (),
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.error_code = error_code
        self.error_message = error_message
        self.topic_config_error_code = topic_config_error_code
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.configs = configs


class CreateTopicsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[CreateTopicsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class DeleteTopicsRequestTopic(Message):
    __slots__ = ("name", "topic_id")

    def __init__(
        self,
        *,
        name: str | None = None,
        topic_id: bytes = bytes(16),
    ) -> None:
        self.name = name
        self.topic_id = topic_id


class DeleteTopicsRequest(Message):
    __slots__ = ("topics", "topic_names", "timeout_ms")

    def __init__(
        self,
        *,
        topics: Sequence[DeleteTopicsRequestTopic] = (),
        topic_names: Sequence[str] = (),
        timeout_ms: int = 0,
    ) -> None:
        self.topics = topics
        self.topic_names = topic_names
        self.timeout_ms = timeout_ms


class DeleteTopicsResponseTopic(Message):
    __slots__ = ("name", "topic_id", "error_code", "error_message")

    def __init__(
        self,
        *,
        name: str | None = "",
        topic_id: bytes = bytes(16),
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.error_code = error_code
        self.error_message = error_message


class DeleteTopicsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        responses: Sequence[DeleteTopicsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses


class DeleteRecordsRequestPartition(Message):
    __slots__ = ("partition_index", "offset")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        offset: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.offset = offset


class DeleteRecordsRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[DeleteRecordsRequestPartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class DeleteRecordsRequest(Message):
    __slots__ = ("topics", "timeout_ms")

    def __init__(
        self,
        *,
        topics: Sequence[DeleteRecordsRequestTopic] = (),
        timeout_ms: int = 0,
    ) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms


class DeleteRecordsResponsePartition(Message):
    __slots__ = ("partition_index", "low_watermark", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        low_watermark: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.low_watermark = low_watermark
        self.error_code = error_code


class DeleteRecordsResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[DeleteRecordsResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class DeleteRecordsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[DeleteRecordsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class InitProducerIdRequest(Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch")

    def __init__(
        self,
        *,
        transactional_id: str | None = "",
        transaction_timeout_ms: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class InitProducerIdResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        producer_id: int = -1,
        producer_epoch: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class OffsetForLeaderEpochRequestPartition(Message):
    __slots__ = ("partition", "current_leader_epoch", "leader_epoch")

    def __init__(
        self,
        *,
        partition: int = 0,
        current_leader_epoch: int = -1,
        leader_epoch: int = 0,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.leader_epoch = leader_epoch


class OffsetForLeaderEpochRequestTopic(Message):
    __slots__ = ("topic", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        partitions: Sequence[OffsetForLeaderEpochRequestPartition] = (),
    ) -> None:
        self.topic = topic
        self.partitions = partitions


class OffsetForLeaderEpochRequest(Message):
    __slots__ = ("replica_id", "topics")

    def __init__(
        self,
        *,
        replica_id: int = -2,
        topics: Sequence[OffsetForLeaderEpochRequestTopic] = (),
    ) -> None:
        self.replica_id = replica_id
        self.topics = topics


class OffsetForLeaderEpochResponsePartition(Message):
    __slots__ = ("error_code", "partition", "leader_epoch", "end_offset")

    def __init__(
        self,
        *,
        error_code: int = 0,
        partition: int = 0,
        leader_epoch: int = -1,
        end_offset: int = -1,
    ) -> None:
        self.error_code = error_code
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end_offset = end_offset


class OffsetForLeaderEpochResponseTopic(Message):
    __slots__ = ("topic", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        partitions: Sequence[OffsetForLeaderEpochResponsePartition] = (),
    ) -> None:
        self.topic = topic
        self.partitions = partitions


class OffsetForLeaderEpochResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[OffsetForLeaderEpochResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class AddPartitionsToTxnRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class AddPartitionsToTxnRequestTransaction(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "verify_only", "topics")

    def __init__(
        self,
        *,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        verify_only: bool = False,
        topics: Sequence[AddPartitionsToTxnRequestTopic] = (),
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.verify_only = verify_only
        self.topics = topics


class AddPartitionsToTxnRequest(Message):
    __slots__ = (
        "transactions",
        "v3_and_below_transactional_id",
        "v3_and_below_producer_id",
        "v3_and_below_producer_epoch",
        "v3_and_below_topics",
    )

    def __init__(
        self,
        *,
        transactions: Sequence[AddPartitionsToTxnRequestTransaction] = (),
        v3_and_below_transactional_id: str = "",
        v3_and_below_producer_id: int = 0,
        v3_and_below_producer_epoch: int = 0,
        v3_and_below_topics: Sequence[AddPartitionsToTxnRequestTopic] = (),
    ) -> None:
        self.transactions = transactions
        self.v3_and_below_transactional_id = v3_and_below_transactional_id
        self.v3_and_below_producer_id = v3_and_below_producer_id
        self.v3_and_below_producer_epoch = v3_and_below_producer_epoch
        self.v3_and_below_topics = v3_and_below_topics


class AddPartitionsToTxnResponsePartition(Message):
    __slots__ = ("partition_index", "partition_error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        partition_error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.partition_error_code = partition_error_code


class AddPartitionsToTxnResponseTopic(Message):
    __slots__ = ("name", "results_by_partition")

    def __init__(
        self,
        *,
        name: str = "",
        results_by_partition: Sequence[AddPartitionsToTxnResponsePartition] = (),
    ) -> None:
        self.name = name
        self.results_by_partition = results_by_partition


class AddPartitionsToTxnResponseTransaction(Message):
    __slots__ = ("transactional_id", "topic_results")

    def __init__(
        self,
        *,
        transactional_id: str = "",
        topic_results: Sequence[AddPartitionsToTxnResponseTopic] = (),
    ) -> None:
        self.transactional_id = transactional_id
        self.topic_results = topic_results


class AddPartitionsToTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "results_by_transaction", "results_by_topic_v3_and_below")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results_by_transaction: Sequence[AddPartitionsToTxnResponseTransaction] = (),
        results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.results_by_transaction = results_by_transaction
        self.results_by_topic_v3_and_below = results_by_topic_v3_and_below


class AddOffsetsToTxnRequest(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "group_id")

    def __init__(
        self,
        *,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        group_id: str = "",
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.group_id = group_id


class AddOffsetsToTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code


class EndTxnRequest(Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "committed")

    def __init__(
        self,
        *,
        transactional_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        committed: bool = False,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.committed = committed


class EndTxnResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class WriteTxnMarkersRequestTopic(Message):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str = "",
        partition_indexes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class WriteTxnMarkersRequestMarker(Message):
    __slots__ = (
        "producer_id",
        "producer_epoch",
        "transaction_result",
        "topics",
        "coordinator_epoch",
        "transaction_version",
    )

    def __init__(
        self,
        *,
        producer_id: int = 0,
        producer_epoch: int = 0,
        transaction_result: bool = False,
        topics: Sequence[WriteTxnMarkersRequestTopic] = (),
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transaction_result = transaction_result
        self.topics = topics
        self.coordinator_epoch = coordinator_epoch
        self.transaction_version = transaction_version


class WriteTxnMarkersRequest(Message):
    __slots__ = ("markers",)

    def __init__(
        self,
        *,
        markers: Sequence[WriteTxnMarkersRequestMarker] = (),
    ) -> None:
        self.markers = markers


class WriteTxnMarkersResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class WriteTxnMarkersResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[WriteTxnMarkersResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class WriteTxnMarkersResponseMarker(Message):
    __slots__ = ("producer_id", "topics")

    def __init__(
        self,
        *,
        producer_id: int = 0,
        topics: Sequence[WriteTxnMarkersResponseTopic] = (),
    ) -> None:
        self.producer_id = producer_id
        self.topics = topics


class WriteTxnMarkersResponse(Message):
    __slots__ = ("markers",)

    def __init__(
        self,
        *,
        markers: Sequence[WriteTxnMarkersResponseMarker] = (),
    ) -> None:
        self.markers = markers


class TxnOffsetCommitRequestPartition(Message):
    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        committed_offset: int = 0,
        committed_leader_epoch: int = -1,
        committed_metadata: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.committed_metadata = committed_metadata


class TxnOffsetCommitRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[TxnOffsetCommitRequestPartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class TxnOffsetCommitRequest(Message):
    __slots__ = (
        "transactional_id",
        "group_id",
        "producer_id",
        "producer_epoch",
        "generation_id",
        "member_id",
        "group_instance_id",
        "topics",
    )

    def __init__(
        self,
        *,
        transactional_id: str = "",
        group_id: str = "",
        producer_id: int = 0,
        producer_epoch: int = 0,
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
        topics: Sequence[TxnOffsetCommitRequestTopic] = (),
    ) -> None:
        self.transactional_id = transactional_id
        self.group_id = group_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.topics = topics


class TxnOffsetCommitResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class TxnOffsetCommitResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[TxnOffsetCommitResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class TxnOffsetCommitResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[TxnOffsetCommitResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class DescribeAclsRequest(Message):
    __slots__ = (
        "resource_type_filter",
        "resource_name_filter",
        "pattern_type_filter",
        "principal_filter",
        "host_filter",
        "operation",
        "permission_type",
    )

    def __init__(
        self,
        *,
        resource_type_filter: int = 0,
        resource_name_filter: str | None = None,
        pattern_type_filter: int = 3,
        principal_filter: str | None = None,
        host_filter: str | None = None,
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type_filter = resource_type_filter
        self.resource_name_filter = resource_name_filter
        self.pattern_type_filter = pattern_type_filter
        self.principal_filter = principal_filter
        self.host_filter = host_filter
        self.operation = operation
        self.permission_type = permission_type


class DescribeAclsResponseAcl(Message):
    __slots__ = ("principal", "host", "operation", "permission_type")

    def __init__(
        self,
        *,
        principal: str = "",
        host: str = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class DescribeAclsResponseResource(Message):
    __slots__ = ("resource_type", "resource_name", "pattern_type", "acls")

    def __init__(
        self,
        *,
        resource_type: int = 0,
        resource_name: str = "",
        pattern_type: int = 3,
        acls: Sequence[DescribeAclsResponseAcl] = (),
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.pattern_type = pattern_type
        self.acls = acls


class DescribeAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "resources")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        resources: Sequence[DescribeAclsResponseResource] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.resources = resources


class CreateAclsRequestCreation(Message):
    __slots__ = (
        "resource_type",
        "resource_name",
        "resource_pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )

    def __init__(
        self,
        *,
        resource_type: int = 0,
        resource_name: str = "",
        resource_pattern_type: int = 3,
        principal: str = "",
        host: str = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.resource_pattern_type = resource_pattern_type
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class CreateAclsRequest(Message):
    __slots__ = ("creations",)

    def __init__(
        self,
        *,
        creations: Sequence[CreateAclsRequestCreation] = (),
    ) -> None:
        self.creations = creations


class CreateAclsResponseResult(Message):
    __slots__ = ("error_code", "error_message")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message


class CreateAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[CreateAclsResponseResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class DeleteAclsRequestFilter(Message):
    __slots__ = (
        "resource_type_filter",
        "resource_name_filter",
        "pattern_type_filter",
        "principal_filter",
        "host_filter",
        "operation",
        "permission_type",
    )

    def __init__(
        self,
        *,
        resource_type_filter: int = 0,
        resource_name_filter: str | None = None,
        pattern_type_filter: int = 3,
        principal_filter: str | None = None,
        host_filter: str | None = None,
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.resource_type_filter = resource_type_filter
        self.resource_name_filter = resource_name_filter
        self.pattern_type_filter = pattern_type_filter
        self.principal_filter = principal_filter
        self.host_filter = host_filter
        self.operation = operation
        self.permission_type = permission_type


class DeleteAclsRequest(Message):
    __slots__ = ("filters",)

    def __init__(
        self,
        *,
        filters: Sequence[DeleteAclsRequestFilter] = (),
    ) -> None:
        self.filters = filters


class DeleteAclsResponseMatchingAcl(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission_type",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        resource_type: int = 0,
        resource_name: str = "",
        pattern_type: int = 3,
        principal: str = "",
        host: str = "",
        operation: int = 0,
        permission_type: int = 0,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.pattern_type = pattern_type
        self.principal = principal
        self.host = host
        self.operation = operation
        self.permission_type = permission_type


class DeleteAclsResponseFilterResult(Message):
    __slots__ = ("error_code", "error_message", "matching_acls")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        matching_acls: Sequence[DeleteAclsResponseMatchingAcl] = (),
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.matching_acls = matching_acls


class DeleteAclsResponse(Message):
    __slots__ = ("throttle_time_ms", "filter_results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        filter_results: Sequence[DeleteAclsResponseFilterResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.filter_results = filter_results


class DescribeConfigsRequestResource(Message):
    __slots__ = ("resource_type", "resource_name", "configuration_keys")

    def __init__(
        self,
        *,
        resource_type: int = 0,
        resource_name: str = "",
        configuration_keys: Sequence[str] | None = (),
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configuration_keys = configuration_keys


class DescribeConfigsRequest(Message):
    __slots__ = ("resources", "include_synonyms", "include_documentation")

    def __init__(
        self,
        *,
        resources: Sequence[DescribeConfigsRequestResource] = (),
        include_synonyms: bool = False,
        include_documentation: bool = False,
    ) -> None:
        self.resources = resources
        self.include_synonyms = include_synonyms
        self.include_documentation = include_documentation


class DescribeConfigsResponseSynonym(Message):
    __slots__ = ("name", "value", "source")

    def __init__(
        self,
        *,
        name: str = "",
        value: str | None = "",
        source: int = 0,
    ) -> None:
        self.name = name
        self.value = value
        self.source = source


class DescribeConfigsResponseConfig(Message):
    __slots__ = (
        "name",
        "value",
        "read_only",
        "config_source",
        "is_sensitive",
        "synonyms",
        "config_type",
        "documentation",
    )

    def __init__(
        self,
        *,
        name: str = "",
        value: str | None = "",
        read_only: bool = False,
        config_source: int = -1,
        is_sensitive: bool = False,
        synonyms: Sequence[DescribeConfigsResponseSynonym] = (),
        config_type: int = 0,
        documentation: str | None = "",
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_sensitive = is_sensitive
        self.synonyms = synonyms
        self.config_type = config_type
        self.documentation = documentation


class DescribeConfigsResponseResource(Message):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name", "configs")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
        configs: Sequence[DescribeConfigsResponseConfig] = (),
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = configs


class DescribeConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[DescribeConfigsResponseResource] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class AlterConfigsRequestConfig(Message):
    __slots__ = ("name", "value")

    def __init__(
        self,
        *,
        name: str = "",
        value: str | None = "",
    ) -> None:
        self.name = name
        self.value = value


class AlterConfigsRequestResource(Message):
    __slots__ = ("resource_type", "resource_name", "configs")

    def __init__(
        self,
        *,
        resource_type: int = 0,
        resource_name: str = "",
        configs: Sequence[AlterConfigsRequestConfig] = (),
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = configs


class AlterConfigsRequest(Message):
    __slots__ = ("resources", "validate_only")

    def __init__(
        self,
        *,
        resources: Sequence[AlterConfigsRequestResource] = (),
        validate_only: bool = False,
    ) -> None:
        self.resources = resources
        self.validate_only = validate_only


class AlterConfigsResponseResource(Message):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class AlterConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        responses: Sequence[AlterConfigsResponseResource] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses


class AlterReplicaLogDirsRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class AlterReplicaLogDirsRequestDir(Message):
    __slots__ = ("path", "topics")

    def __init__(
        self,
        *,
        path: str = "",
        topics: Sequence[AlterReplicaLogDirsRequestTopic] = (),
    ) -> None:
        self.path = path
        self.topics = topics


class AlterReplicaLogDirsRequest(Message):
    __slots__ = ("dirs",)

    def __init__(
        self,
        *,
        dirs: Sequence[AlterReplicaLogDirsRequestDir] = (),
    ) -> None:
        self.dirs = dirs


class AlterReplicaLogDirsResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class AlterReplicaLogDirsResponseResult(Message):
    __slots__ = ("topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partitions: Sequence[AlterReplicaLogDirsResponsePartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class AlterReplicaLogDirsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[AlterReplicaLogDirsResponseResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class DescribeLogDirsRequestTopic(Message):
    __slots__ = ("topic", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.partitions = partitions


class DescribeLogDirsRequest(Message):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: Sequence[DescribeLogDirsRequestTopic] | None = (),
    ) -> None:
        self.topics = topics


class DescribeLogDirsResponsePartition(Message):
    __slots__ = ("partition_index", "partition_size", "offset_lag", "is_future_key")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        partition_size: int = 0,
        offset_lag: int = 0,
        is_future_key: bool = False,
    ) -> None:
        self.partition_index = partition_index
        self.partition_size = partition_size
        self.offset_lag = offset_lag
        self.is_future_key = is_future_key


class DescribeLogDirsResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[DescribeLogDirsResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class DescribeLogDirsResponseLogDir(Message):
    __slots__ = ("error_code", "log_dir", "topics", "total_bytes", "usable_bytes", "is_cordoned")

    def __init__(
        self,
        *,
        error_code: int = 0,
        log_dir: str = "",
        topics: Sequence[DescribeLogDirsResponseTopic] = (),
        total_bytes: int = -1,
        usable_bytes: int = -1,
        is_cordoned: bool = False,
    ) -> None:
        self.error_code = error_code
        self.log_dir = log_dir
        self.topics = topics
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
        self.is_cordoned = is_cordoned


class DescribeLogDirsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        results: Sequence[DescribeLogDirsResponseLogDir] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.results = results


class SaslAuthenticateRequest(Message):
    __slots__ = ("auth_bytes",)

    def __init__(
        self,
        *,
        auth_bytes: Bytes = b"",
    ) -> None:
        self.auth_bytes = auth_bytes


class SaslAuthenticateResponse(Message):
    __slots__ = ("error_code", "error_message", "auth_bytes", "session_lifetime_ms")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = "",
        auth_bytes: Bytes = b"",
        session_lifetime_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.auth_bytes = auth_bytes
        self.session_lifetime_ms = session_lifetime_ms


class CreatePartitionsRequestAssignment(Message):
    __slots__ = ("broker_ids",)

    def __init__(
        self,
        *,
        broker_ids: Sequence[int] = (),
    ) -> None:
        self.broker_ids = broker_ids


class CreatePartitionsRequestTopic(Message):
    __slots__ = ("name", "count", "assignments")

    def __init__(
        self,
        *,
        name: str = "",
        count: int = 0,
        assignments: Sequence[CreatePartitionsRequestAssignment] | None = (),
    ) -> None:
        self.name = name
        self.count = count
        self.assignments = assignments


class CreatePartitionsRequest(Message):
    __slots__ = ("topics", "timeout_ms", "validate_only")

    def __init__(
        self,
        *,
        topics: Sequence[CreatePartitionsRequestTopic] = (),
        timeout_ms: int = 0,
        validate_only: bool = False,
    ) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreatePartitionsResponseTopic(Message):
    __slots__ = ("name", "error_code", "error_message")

    def __init__(
        self,
        *,
        name: str = "",
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message


class CreatePartitionsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[CreatePartitionsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class CreateDelegationTokenRequestCreatableRenewers(Message):
    __slots__ = ("principal_type", "principal_name")

    def __init__(
        self,
        *,
        principal_type: str = "",
        principal_name: str = "",
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class CreateDelegationTokenRequest(Message):
    __slots__ = ("owner_principal_type", "owner_principal_name", "renewers", "max_lifetime_ms")

    def __init__(
        self,
        *,
        owner_principal_type: str | None = "",
        owner_principal_name: str | None = "",
        renewers: Sequence[CreateDelegationTokenRequestCreatableRenewers] = (),
        max_lifetime_ms: int = 0,
    ) -> None:
        self.owner_principal_type = owner_principal_type
        self.owner_principal_name = owner_principal_name
        self.renewers = renewers
        self.max_lifetime_ms = max_lifetime_ms


class CreateDelegationTokenResponse(Message):
    __slots__ = (
        "error_code",
        "principal_type",
        "principal_name",
        "token_requester_principal_type",
        "token_requester_principal_name",
        "issue_timestamp_ms",
        "expiry_timestamp_ms",
        "max_timestamp_ms",
        "token_id",
        "hmac",
        "throttle_time_ms",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        principal_type: str = "",
        principal_name: str = "",
        token_requester_principal_type: str = "",
        token_requester_principal_name: str = "",
        issue_timestamp_ms: int = 0,
        expiry_timestamp_ms: int = 0,
        max_timestamp_ms: int = 0,
        token_id: str = "",
        hmac: Bytes = b"",
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.principal_type = principal_type
        self.principal_name = principal_name
        self.token_requester_principal_type = token_requester_principal_type
        self.token_requester_principal_name = token_requester_principal_name
        self.issue_timestamp_ms = issue_timestamp_ms
        self.expiry_timestamp_ms = expiry_timestamp_ms
        self.max_timestamp_ms = max_timestamp_ms
        self.token_id = token_id
        self.hmac = hmac
        self.throttle_time_ms = throttle_time_ms


class RenewDelegationTokenRequest(Message):
    __slots__ = ("hmac", "renew_period_ms")

    def __init__(
        self,
        *,
        hmac: Bytes = b"",
        renew_period_ms: int = 0,
    ) -> None:
        self.hmac = hmac
        self.renew_period_ms = renew_period_ms


class RenewDelegationTokenResponse(Message):
    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")

    def __init__(
        self,
        *,
        error_code: int = 0,
        expiry_timestamp_ms: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.expiry_timestamp_ms = expiry_timestamp_ms
        self.throttle_time_ms = throttle_time_ms


class ExpireDelegationTokenRequest(Message):
    __slots__ = ("hmac", "expiry_time_period_ms")

    def __init__(
        self,
        *,
        hmac: Bytes = b"",
        expiry_time_period_ms: int = 0,
    ) -> None:
        self.hmac = hmac
        self.expiry_time_period_ms = expiry_time_period_ms


class ExpireDelegationTokenResponse(Message):
    __slots__ = ("error_code", "expiry_timestamp_ms", "throttle_time_ms")

    def __init__(
        self,
        *,
        error_code: int = 0,
        expiry_timestamp_ms: int = 0,
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.expiry_timestamp_ms = expiry_timestamp_ms
        self.throttle_time_ms = throttle_time_ms


class DescribeDelegationTokenRequestDescribeDelegationTokenOwner(Message):
    __slots__ = ("principal_type", "principal_name")

    def __init__(
        self,
        *,
        principal_type: str = "",
        principal_name: str = "",
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class DescribeDelegationTokenRequest(Message):
    __slots__ = ("owners",)

    def __init__(
        self,
        *,
        owners: Sequence[DescribeDelegationTokenRequestDescribeDelegationTokenOwner] | None = (),
    ) -> None:
        self.owners = owners


class DescribeDelegationTokenResponseDescribedDelegationTokenRenewer(Message):
    __slots__ = ("principal_type", "principal_name")

    def __init__(
        self,
        *,
        principal_type: str = "",
        principal_name: str = "",
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name


class DescribeDelegationTokenResponseDescribedDelegationToken(Message):
    __slots__ = (
        "principal_type",
        "principal_name",
        "token_requester_principal_type",
        "token_requester_principal_name",
        "issue_timestamp",
        "expiry_timestamp",
        "max_timestamp",
        "token_id",
        "hmac",
        "renewers",
    )

    def __init__(
        self,
        *,
        principal_type: str = "",
        principal_name: str = "",
        token_requester_principal_type: str = "",
        token_requester_principal_name: str = "",
        issue_timestamp: int = 0,
        expiry_timestamp: int = 0,
        max_timestamp: int = 0,
        token_id: str = "",
        hmac: Bytes = b"",
        renewers: Sequence[DescribeDelegationTokenResponseDescribedDelegationTokenRenewer] = (),
    ) -> None:
        self.principal_type = principal_type
        self.principal_name = principal_name
        self.token_requester_principal_type = token_requester_principal_type
        self.token_requester_principal_name = token_requester_principal_name
        self.issue_timestamp = issue_timestamp
        self.expiry_timestamp = expiry_timestamp
        self.max_timestamp = max_timestamp
        self.token_id = token_id
        self.hmac = hmac
        self.renewers = renewers


class DescribeDelegationTokenResponse(Message):
    __slots__ = ("error_code", "tokens", "throttle_time_ms")

    def __init__(
        self,
        *,
        error_code: int = 0,
        tokens: Sequence[DescribeDelegationTokenResponseDescribedDelegationToken] = (),
        throttle_time_ms: int = 0,
    ) -> None:
        self.error_code = error_code
        self.tokens = tokens
        self.throttle_time_ms = throttle_time_ms


class DeleteGroupsRequest(Message):
    __slots__ = ("groups_names",)

    def __init__(
        self,
        *,
        groups_names: Sequence[str] = (),
    ) -> None:
        self.groups_names = groups_names


class DeleteGroupsResponseResult(Message):
    __slots__ = ("group_id", "error_code")

    def __init__(
        self,
        *,
        group_id: str = "",
        error_code: int = 0,
    ) -> None:
        self.group_id = group_id
        self.error_code = error_code


class DeleteGroupsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[DeleteGroupsResponseResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class ElectLeadersRequestTopicPartitions(Message):
    __slots__ = ("topic", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.partitions = partitions


class ElectLeadersRequest(Message):
    __slots__ = ("election_type", "topic_partitions", "timeout_ms")

    def __init__(
        self,
        *,
        election_type: int = 0,
        topic_partitions: Sequence[ElectLeadersRequestTopicPartitions] | None = (),
        timeout_ms: int = 60000,
    ) -> None:
        self.election_type = election_type
        self.topic_partitions = topic_partitions
        self.timeout_ms = timeout_ms


class ElectLeadersResponsePartitionResult(Message):
    __slots__ = ("partition_id", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition_id: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.partition_id = partition_id
        self.error_code = error_code
        self.error_message = error_message


class ElectLeadersResponseReplicaElectionResult(Message):
    __slots__ = ("topic", "partition_result")

    def __init__(
        self,
        *,
        topic: str = "",
        partition_result: Sequence[ElectLeadersResponsePartitionResult] = (),
    ) -> None:
        self.topic = topic
        self.partition_result = partition_result


class ElectLeadersResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "replica_election_results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        replica_election_results: Sequence[ElectLeadersResponseReplicaElectionResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.replica_election_results = replica_election_results


class IncrementalAlterConfigsRequestConfig(Message):
    __slots__ = ("name", "config_operation", "value")

    def __init__(
        self,
        *,
        name: str = "",
        config_operation: int = 0,
        value: str | None = "",
    ) -> None:
        self.name = name
        self.config_operation = config_operation
        self.value = value


class IncrementalAlterConfigsRequestResource(Message):
    __slots__ = ("resource_type", "resource_name", "configs")

    def __init__(
        self,
        *,
        resource_type: int = 0,
        resource_name: str = "",
        configs: Sequence[IncrementalAlterConfigsRequestConfig] = (),
    ) -> None:
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.configs = configs


class IncrementalAlterConfigsRequest(Message):
    __slots__ = ("resources", "validate_only")

    def __init__(
        self,
        *,
        resources: Sequence[IncrementalAlterConfigsRequestResource] = (),
        validate_only: bool = False,
    ) -> None:
        self.resources = resources
        self.validate_only = validate_only


class IncrementalAlterConfigsResponseResource(Message):
    __slots__ = ("error_code", "error_message", "resource_type", "resource_name")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = "",
        resource_type: int = 0,
        resource_name: str = "",
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.resource_type = resource_type
        self.resource_name = resource_name


class IncrementalAlterConfigsResponse(Message):
    __slots__ = ("throttle_time_ms", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        responses: Sequence[IncrementalAlterConfigsResponseResource] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses


class AlterPartitionReassignmentsRequestPartition(Message):
    __slots__ = ("partition_index", "replicas")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        replicas: Sequence[int] | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.replicas = replicas


class AlterPartitionReassignmentsRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[AlterPartitionReassignmentsRequestPartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class AlterPartitionReassignmentsRequest(Message):
    __slots__ = ("timeout_ms", "allow_replication_factor_change", "topics")

    def __init__(
        self,
        *,
        timeout_ms: int = 60000,
        allow_replication_factor_change: bool = True,
        topics: Sequence[AlterPartitionReassignmentsRequestTopic] = (),
    ) -> None:
        self.timeout_ms = timeout_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.topics = topics


class AlterPartitionReassignmentsResponsePartition(Message):
    __slots__ = ("partition_index", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


class AlterPartitionReassignmentsResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[AlterPartitionReassignmentsResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class AlterPartitionReassignmentsResponse(Message):
    __slots__ = ("throttle_time_ms", "allow_replication_factor_change", "error_code", "error_message", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        allow_replication_factor_change: bool = True,
        error_code: int = 0,
        error_message: str | None = "",
        responses: Sequence[AlterPartitionReassignmentsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.allow_replication_factor_change = allow_replication_factor_change
        self.error_code = error_code
        self.error_message = error_message
        self.responses = responses


class ListPartitionReassignmentsRequestTopic(Message):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str = "",
        partition_indexes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class ListPartitionReassignmentsRequest(Message):
    __slots__ = ("timeout_ms", "topics")

    def __init__(
        self,
        *,
        timeout_ms: int = 60000,
        topics: Sequence[ListPartitionReassignmentsRequestTopic] | None = None,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.topics = topics


class ListPartitionReassignmentsResponsePartition(Message):
    __slots__ = ("partition_index", "replicas", "adding_replicas", "removing_replicas")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        replicas: Sequence[int] = (),
        adding_replicas: Sequence[int] = (),
        removing_replicas: Sequence[int] = (),
    ) -> None:
        self.partition_index = partition_index
        self.replicas = replicas
        self.adding_replicas = adding_replicas
        self.removing_replicas = removing_replicas


class ListPartitionReassignmentsResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[ListPartitionReassignmentsResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class ListPartitionReassignmentsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        topics: Sequence[ListPartitionReassignmentsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.topics = topics


class OffsetDeleteRequestPartition(Message):
    __slots__ = ("partition_index",)

    def __init__(
        self,
        *,
        partition_index: int = 0,
    ) -> None:
        self.partition_index = partition_index


class OffsetDeleteRequestTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[OffsetDeleteRequestPartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class OffsetDeleteRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[OffsetDeleteRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class OffsetDeleteResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetDeleteResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[OffsetDeleteResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class OffsetDeleteResponse(Message):
    __slots__ = ("error_code", "throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        error_code: int = 0,
        throttle_time_ms: int = 0,
        topics: Sequence[OffsetDeleteResponseTopic] = (),
    ) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class DescribeClientQuotasRequestComponent(Message):
    __slots__ = ("entity_type", "match_type", "match")

    def __init__(
        self,
        *,
        entity_type: str = "",
        match_type: int = 0,
        match: str | None = None,
    ) -> None:
        self.entity_type = entity_type
        self.match_type = match_type
        self.match = match


class DescribeClientQuotasRequest(Message):
    __slots__ = ("components", "strict")

    def __init__(
        self,
        *,
        components: Sequence[DescribeClientQuotasRequestComponent] = (),
        strict: bool = False,
    ) -> None:
        self.components = components
        self.strict = strict


class DescribeClientQuotasResponseEntity(Message):
    __slots__ = ("entity_type", "entity_name")

    def __init__(
        self,
        *,
        entity_type: str = "",
        entity_name: str | None = None,
    ) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class DescribeClientQuotasResponseValue(Message):
    __slots__ = ("key", "value")

    def __init__(
        self,
        *,
        key: str = "",
        value: float = 0.0,
    ) -> None:
        self.key = key
        self.value = value


class DescribeClientQuotasResponseEntry(Message):
    __slots__ = ("entity", "values")

    def __init__(
        self,
        *,
        entity: Sequence[DescribeClientQuotasResponseEntity] = (),
        values: Sequence[DescribeClientQuotasResponseValue] = (),
    ) -> None:
        self.entity = entity
        self.values = values


class DescribeClientQuotasResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "entries")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        entries: Sequence[DescribeClientQuotasResponseEntry] | None = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.entries = entries


class AlterClientQuotasRequestEntity(Message):
    __slots__ = ("entity_type", "entity_name")

    def __init__(
        self,
        *,
        entity_type: str = "",
        entity_name: str | None = None,
    ) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class AlterClientQuotasRequestOp(Message):
    __slots__ = ("key", "value", "remove")

    def __init__(
        self,
        *,
        key: str = "",
        value: float = 0.0,
        remove: bool = False,
    ) -> None:
        self.key = key
        self.value = value
        self.remove = remove


class AlterClientQuotasRequestEntry(Message):
    __slots__ = ("entity", "ops")

    def __init__(
        self,
        *,
        entity: Sequence[AlterClientQuotasRequestEntity] = (),
        ops: Sequence[AlterClientQuotasRequestOp] = (),
    ) -> None:
        self.entity = entity
        self.ops = ops


class AlterClientQuotasRequest(Message):
    __slots__ = ("entries", "validate_only")

    def __init__(
        self,
        *,
        entries: Sequence[AlterClientQuotasRequestEntry] = (),
        validate_only: bool = False,
    ) -> None:
        self.entries = entries
        self.validate_only = validate_only


class AlterClientQuotasResponseEntity(Message):
    __slots__ = ("entity_type", "entity_name")

    def __init__(
        self,
        *,
        entity_type: str = "",
        entity_name: str | None = None,
    ) -> None:
        self.entity_type = entity_type
        self.entity_name = entity_name


class AlterClientQuotasResponseEntry(Message):
    __slots__ = ("error_code", "error_message", "entity")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        entity: Sequence[AlterClientQuotasResponseEntity] = (),
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.entity = entity


class AlterClientQuotasResponse(Message):
    __slots__ = ("throttle_time_ms", "entries")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        entries: Sequence[AlterClientQuotasResponseEntry] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.entries = entries


class DescribeUserScramCredentialsRequestUserName(Message):
    __slots__ = ("name",)

    def __init__(
        self,
        *,
        name: str = "",
    ) -> None:
        self.name = name


class DescribeUserScramCredentialsRequest(Message):
    __slots__ = ("users",)

    def __init__(
        self,
        *,
        users: Sequence[DescribeUserScramCredentialsRequestUserName] | None = (),
    ) -> None:
        self.users = users


class DescribeUserScramCredentialsResponseCredentialInfo(Message):
    __slots__ = ("mechanism", "iterations")

    def __init__(
        self,
        *,
        mechanism: int = 0,
        iterations: int = 0,
    ) -> None:
        self.mechanism = mechanism
        self.iterations = iterations


class DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult(Message):
    __slots__ = ("user", "error_code", "error_message", "credential_infos")

    def __init__(
        self,
        *,
        user: str = "",
        error_code: int = 0,
        error_message: str | None = "",
        credential_infos: Sequence[DescribeUserScramCredentialsResponseCredentialInfo] = (),
    ) -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message
        self.credential_infos = credential_infos


class DescribeUserScramCredentialsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = "",
        results: Sequence[DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = results


class AlterUserScramCredentialsRequestScramCredentialDeletion(Message):
    __slots__ = ("name", "mechanism")

    def __init__(
        self,
        *,
        name: str = "",
        mechanism: int = 0,
    ) -> None:
        self.name = name
        self.mechanism = mechanism


class AlterUserScramCredentialsRequestScramCredentialUpsertion(Message):
    __slots__ = ("name", "mechanism", "iterations", "salt", "salted_password")

    def __init__(
        self,
        *,
        name: str = "",
        mechanism: int = 0,
        iterations: int = 0,
        salt: Bytes = b"",
        salted_password: Bytes = b"",
    ) -> None:
        self.name = name
        self.mechanism = mechanism
        self.iterations = iterations
        self.salt = salt
        self.salted_password = salted_password


class AlterUserScramCredentialsRequest(Message):
    __slots__ = ("deletions", "upsertions")

    def __init__(
        self,
        *,
        deletions: Sequence[AlterUserScramCredentialsRequestScramCredentialDeletion] = (),
        upsertions: Sequence[AlterUserScramCredentialsRequestScramCredentialUpsertion] = (),
    ) -> None:
        self.deletions = deletions
        self.upsertions = upsertions


class AlterUserScramCredentialsResponseAlterUserScramCredentialsResult(Message):
    __slots__ = ("user", "error_code", "error_message")

    def __init__(
        self,
        *,
        user: str = "",
        error_code: int = 0,
        error_message: str | None = "",
    ) -> None:
        self.user = user
        self.error_code = error_code
        self.error_message = error_message


class AlterUserScramCredentialsResponse(Message):
    __slots__ = ("throttle_time_ms", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        results: Sequence[AlterUserScramCredentialsResponseAlterUserScramCredentialsResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results


class DescribeQuorumRequestPartition(Message):
    __slots__ = ("partition_index",)

    def __init__(
        self,
        *,
        partition_index: int = 0,
    ) -> None:
        self.partition_index = partition_index


class DescribeQuorumRequestTopic(Message):
    __slots__ = ("topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partitions: Sequence[DescribeQuorumRequestPartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class DescribeQuorumRequest(Message):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: Sequence[DescribeQuorumRequestTopic] = (),
    ) -> None:
        self.topics = topics


class DescribeQuorumResponseReplica(Message):
    __slots__ = (
        "replica_id",
        "replica_directory_id",
        "log_end_offset",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
    )

    def __init__(
        self,
        *,
        replica_id: int = 0,
        replica_directory_id: bytes = bytes(16),
        log_end_offset: int = 0,
        last_fetch_timestamp: int = -1,
        last_caught_up_timestamp: int = -1,
    ) -> None:
        self.replica_id = replica_id
        self.replica_directory_id = replica_directory_id
        self.log_end_offset = log_end_offset
        self.last_fetch_timestamp = last_fetch_timestamp
        self.last_caught_up_timestamp = last_caught_up_timestamp


class DescribeQuorumResponsePartition(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "error_message",
        "leader_id",
        "leader_epoch",
        "high_watermark",
        "current_voters",
        "observers",
    )

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        leader_id: int = 0,
        leader_epoch: int = 0,
        high_watermark: int = 0,
        current_voters: Sequence[DescribeQuorumResponseReplica] = (),
        observers: Sequence[DescribeQuorumResponseReplica] = (),
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.current_voters = current_voters
        self.observers = observers


class DescribeQuorumResponseTopic(Message):
    __slots__ = ("topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partitions: Sequence[DescribeQuorumResponsePartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class DescribeQuorumResponseListener(Message):
    __slots__ = ("name", "host", "port")

    def __init__(
        self,
        *,
        name: str = "",
        host: str = "",
        port: int = 0,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port


class DescribeQuorumResponseNode(Message):
    __slots__ = ("node_id", "listeners")

    def __init__(
        self,
        *,
        node_id: int = 0,
        listeners: Sequence[DescribeQuorumResponseListener] = (),
    ) -> None:
        self.node_id = node_id
        self.listeners = listeners


class DescribeQuorumResponse(Message):
    __slots__ = ("error_code", "error_message", "topics", "nodes")

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        topics: Sequence[DescribeQuorumResponseTopic] = (),
        nodes: Sequence[DescribeQuorumResponseNode] = (),
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.topics = topics
        self.nodes = nodes


class UpdateFeaturesRequestFeatureUpdate(Message):
    __slots__ = ("feature", "max_version_level", "allow_downgrade", "upgrade_type")

    def __init__(
        self,
        *,
        feature: str = "",
        max_version_level: int = 0,
        allow_downgrade: bool = False,
        upgrade_type: int = 1,
    ) -> None:
        self.feature = feature
        self.max_version_level = max_version_level
        self.allow_downgrade = allow_downgrade
        self.upgrade_type = upgrade_type


class UpdateFeaturesRequest(Message):
    __slots__ = ("timeout_ms", "feature_updates", "validate_only")

    def __init__(
        self,
        *,
        timeout_ms: int = 60000,
        feature_updates: Sequence[UpdateFeaturesRequestFeatureUpdate] = (),
        validate_only: bool = False,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.feature_updates = feature_updates
        self.validate_only = validate_only


class UpdateFeaturesResponseResult(Message):
    __slots__ = ("feature", "error_code", "error_message")

    def __init__(
        self,
        *,
        feature: str = "",
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.feature = feature
        self.error_code = error_code
        self.error_message = error_message


class UpdateFeaturesResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "results")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        results: Sequence[UpdateFeaturesResponseResult] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.results = results


class DescribeClusterRequest(Message):
    __slots__ = ("include_cluster_authorized_operations", "endpoint_type", "include_fenced_brokers")

    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool = False,
        endpoint_type: int = 1,
        include_fenced_brokers: bool = False,
    ) -> None:
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.endpoint_type = endpoint_type
        self.include_fenced_brokers = include_fenced_brokers


class DescribeClusterResponseBroker(Message):
    __slots__ = ("broker_id", "host", "port", "rack", "is_fenced")

    def __init__(
        self,
        *,
        broker_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
        is_fenced: bool = False,
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.rack = rack
        self.is_fenced = is_fenced


class DescribeClusterResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "endpoint_type",
        "cluster_id",
        "controller_id",
        "brokers",
        "cluster_authorized_operations",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        endpoint_type: int = 1,
        cluster_id: str = "",
        controller_id: int = -1,
        brokers: Sequence[DescribeClusterResponseBroker] = (),
        cluster_authorized_operations: int = -2147483648,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.endpoint_type = endpoint_type
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = brokers
        self.cluster_authorized_operations = cluster_authorized_operations


class DescribeProducersRequestTopic(Message):
    __slots__ = ("name", "partition_indexes")

    def __init__(
        self,
        *,
        name: str = "",
        partition_indexes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class DescribeProducersRequest(Message):
    __slots__ = ("topics",)

    def __init__(
        self,
        *,
        topics: Sequence[DescribeProducersRequestTopic] = (),
    ) -> None:
        self.topics = topics


class DescribeProducersResponseProducer(Message):
    __slots__ = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_timestamp",
        "coordinator_epoch",
        "current_txn_start_offset",
    )

    def __init__(
        self,
        *,
        producer_id: int = 0,
        producer_epoch: int = 0,
        last_sequence: int = -1,
        last_timestamp: int = -1,
        coordinator_epoch: int = 0,
        current_txn_start_offset: int = -1,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_start_offset = current_txn_start_offset


class DescribeProducersResponsePartition(Message):
    __slots__ = ("partition_index", "error_code", "error_message", "active_producers")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        active_producers: Sequence[DescribeProducersResponseProducer] = (),
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.active_producers = active_producers


class DescribeProducersResponseTopic(Message):
    __slots__ = ("name", "partitions")

    def __init__(
        self,
        *,
        name: str = "",
        partitions: Sequence[DescribeProducersResponsePartition] = (),
    ) -> None:
        self.name = name
        self.partitions = partitions


class DescribeProducersResponse(Message):
    __slots__ = ("throttle_time_ms", "topics")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[DescribeProducersResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics


class UnregisterBrokerRequest(Message):
    __slots__ = ("broker_id",)

    def __init__(
        self,
        *,
        broker_id: int = 0,
    ) -> None:
        self.broker_id = broker_id


class UnregisterBrokerResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message


class DescribeTransactionsRequest(Message):
    __slots__ = ("transactional_ids",)

    def __init__(
        self,
        *,
        transactional_ids: Sequence[str] = (),
    ) -> None:
        self.transactional_ids = transactional_ids


class DescribeTransactionsResponseTopic(Message):
    __slots__ = ("topic", "partitions")

    def __init__(
        self,
        *,
        topic: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic = topic
        self.partitions = partitions


class DescribeTransactionsResponseTransaction(Message):
    __slots__ = (
        "error_code",
        "transactional_id",
        "transaction_state",
        "transaction_timeout_ms",
        "transaction_start_time_ms",
        "producer_id",
        "producer_epoch",
        "topics",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        transactional_id: str = "",
        transaction_state: str = "",
        transaction_timeout_ms: int = 0,
        transaction_start_time_ms: int = 0,
        producer_id: int = 0,
        producer_epoch: int = 0,
        topics: Sequence[DescribeTransactionsResponseTopic] = (),
    ) -> None:
        self.error_code = error_code
        self.transactional_id = transactional_id
        self.transaction_state = transaction_state
        self.transaction_timeout_ms = transaction_timeout_ms
        self.transaction_start_time_ms = transaction_start_time_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.topics = topics


class DescribeTransactionsResponse(Message):
    __slots__ = ("throttle_time_ms", "transaction_states")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        transaction_states: Sequence[DescribeTransactionsResponseTransaction] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.transaction_states = transaction_states


class ListTransactionsRequest(Message):
    __slots__ = ("state_filters", "producer_id_filters", "duration_filter", "transactional_id_pattern")

    def __init__(
        self,
        *,
        state_filters: Sequence[str] = (),
        producer_id_filters: Sequence[int] = (),
        duration_filter: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> None:
        self.state_filters = state_filters
        self.producer_id_filters = producer_id_filters
        self.duration_filter = duration_filter
        self.transactional_id_pattern = transactional_id_pattern


class ListTransactionsResponseTransaction(Message):
    __slots__ = ("transactional_id", "producer_id", "transaction_state")

    def __init__(
        self,
        *,
        transactional_id: str = "",
        producer_id: int = 0,
        transaction_state: str = "",
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.transaction_state = transaction_state


class ListTransactionsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "unknown_state_filters", "transaction_states")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        unknown_state_filters: Sequence[str] = (),
        transaction_states: Sequence[ListTransactionsResponseTransaction] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.unknown_state_filters = unknown_state_filters
        self.transaction_states = transaction_states


class ConsumerGroupHeartbeatRequestTopicPartitions(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ConsumerGroupHeartbeatRequest(Message):
    __slots__ = (
        "group_id",
        "member_id",
        "member_epoch",
        "instance_id",
        "rack_id",
        "rebalance_timeout_ms",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "server_assignor",
        "topic_partitions",
    )

    def __init__(
        self,
        *,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        subscribed_topic_names: Sequence[str] | None = None,
        subscribed_topic_regex: str | None = None,
        server_assignor: str | None = None,
        topic_partitions: Sequence[ConsumerGroupHeartbeatRequestTopicPartitions] | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.subscribed_topic_names = subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.server_assignor = server_assignor
        self.topic_partitions = topic_partitions


class ConsumerGroupHeartbeatResponseTopicPartitions(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ConsumerGroupHeartbeatResponseAssignment(Message):
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        *,
        topic_partitions: Sequence[ConsumerGroupHeartbeatResponseTopicPartitions] = (),
    ) -> None:
        self.topic_partitions = topic_partitions


class ConsumerGroupHeartbeatResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "member_id",
        "member_epoch",
        "heartbeat_interval_ms",
        "assignment",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        assignment: ConsumerGroupHeartbeatResponseAssignment | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment = assignment


class ConsumerGroupDescribeRequest(Message):
    __slots__ = ("group_ids", "include_authorized_operations")

    def __init__(
        self,
        *,
        group_ids: Sequence[str] = (),
        include_authorized_operations: bool = False,
    ) -> None:
        self.group_ids = group_ids
        self.include_authorized_operations = include_authorized_operations


class ConsumerGroupDescribeResponseTopicPartitions(Message):
    __slots__ = ("topic_id", "topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        topic_name: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = partitions


class ConsumerGroupDescribeResponseAssignment(Message):
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        *,
        topic_partitions: Sequence[ConsumerGroupDescribeResponseTopicPartitions] = (),
    ) -> None:
        self.topic_partitions = topic_partitions


class ConsumerGroupDescribeResponseMember(Message):
    __slots__ = (
        "member_id",
        "instance_id",
        "rack_id",
        "member_epoch",
        "client_id",
        "client_host",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "assignment",
        "target_assignment",
        "member_type",
    )

    def __init__(
        self,
        *,
        member_id: str = "",
        instance_id: str | None = None,
        rack_id: str | None = None,
        member_epoch: int = 0,
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: Sequence[str] = (),
        subscribed_topic_regex: str | None = None,
        assignment: ConsumerGroupDescribeResponseAssignment | None = None,
        target_assignment: ConsumerGroupDescribeResponseAssignment | None = None,
        member_type: int = -1,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.member_epoch = member_epoch
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.assignment = assignment
        self.target_assignment = target_assignment
        self.member_type = member_type


class ConsumerGroupDescribeResponseGroup(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "group_epoch",
        "assignment_epoch",
        "assignor_name",
        "members",
        "authorized_operations",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        group_epoch: int = 0,
        assignment_epoch: int = 0,
        assignor_name: str = "",
        members: Sequence[ConsumerGroupDescribeResponseMember] = (),
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.group_epoch = group_epoch
        self.assignment_epoch = assignment_epoch
        self.assignor_name = assignor_name
        self.members = members
        self.authorized_operations = authorized_operations


class ConsumerGroupDescribeResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        groups: Sequence[ConsumerGroupDescribeResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups


class GetTelemetrySubscriptionsRequest(Message):
    __slots__ = ("client_instance_id",)

    def __init__(
        self,
        *,
        client_instance_id: bytes = bytes(16),
    ) -> None:
        self.client_instance_id = client_instance_id


class GetTelemetrySubscriptionsResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "client_instance_id",
        "subscription_id",
        "accepted_compression_types",
        "push_interval_ms",
        "telemetry_max_bytes",
        "delta_temporality",
        "requested_metrics",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        client_instance_id: bytes = bytes(16),
        subscription_id: int = 0,
        accepted_compression_types: Sequence[int] = (),
        push_interval_ms: int = 0,
        telemetry_max_bytes: int = 0,
        delta_temporality: bool = False,
        requested_metrics: Sequence[str] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.client_instance_id = client_instance_id
        self.subscription_id = subscription_id
        self.accepted_compression_types = accepted_compression_types
        self.push_interval_ms = push_interval_ms
        self.telemetry_max_bytes = telemetry_max_bytes
        self.delta_temporality = delta_temporality
        self.requested_metrics = requested_metrics


class PushTelemetryRequest(Message):
    __slots__ = ("client_instance_id", "subscription_id", "terminating", "compression_type", "metrics")

    def __init__(
        self,
        *,
        client_instance_id: bytes = bytes(16),
        subscription_id: int = 0,
        terminating: bool = False,
        compression_type: int = 0,
        metrics: Bytes = b"",
    ) -> None:
        self.client_instance_id = client_instance_id
        self.subscription_id = subscription_id
        self.terminating = terminating
        self.compression_type = compression_type
        self.metrics = metrics


class PushTelemetryResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code


class ListConfigResourcesRequest(Message):
    __slots__ = ("resource_types",)

    def __init__(
        self,
        *,
        resource_types: Sequence[int] = (),
    ) -> None:
        self.resource_types = resource_types


class ListConfigResourcesResponseResource(Message):
    __slots__ = ("resource_name", "resource_type")

    def __init__(
        self,
        *,
        resource_name: str = "",
        resource_type: int = 16,
    ) -> None:
        self.resource_name = resource_name
        self.resource_type = resource_type


class ListConfigResourcesResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "config_resources")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        config_resources: Sequence[ListConfigResourcesResponseResource] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.config_resources = config_resources


class DescribeTopicPartitionsRequestTopic(Message):
    __slots__ = ("name",)

    def __init__(
        self,
        *,
        name: str = "",
    ) -> None:
        self.name = name


class DescribeTopicPartitionsCursor(Message):
    __slots__ = ("topic_name", "partition_index")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partition_index: int = 0,
    ) -> None:
        self.topic_name = topic_name
        self.partition_index = partition_index


class DescribeTopicPartitionsRequest(Message):
    __slots__ = ("topics", "response_partition_limit", "cursor")

    def __init__(
        self,
        *,
        topics: Sequence[DescribeTopicPartitionsRequestTopic] = (),
        response_partition_limit: int = 2000,
        cursor: DescribeTopicPartitionsCursor | None = None,
    ) -> None:
        self.topics = topics
        self.response_partition_limit = response_partition_limit
        self.cursor = cursor


class DescribeTopicPartitionsResponsePartition(Message):
    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "eligible_leader_replicas",
        "last_known_elr",
        "offline_replicas",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        partition_index: int = 0,
        leader_id: int = 0,
        leader_epoch: int = -1,
        replica_nodes: Sequence[int] = (),
        isr_nodes: Sequence[int] = (),
        eligible_leader_replicas: Sequence[int] | None = None,
        last_known_elr: Sequence[int] | None = None,
        offline_replicas: Sequence[int] = (),
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replica_nodes = replica_nodes
        self.isr_nodes = isr_nodes
        self.eligible_leader_replicas = eligible_leader_replicas
        self.last_known_elr = last_known_elr
        self.offline_replicas = offline_replicas


class DescribeTopicPartitionsResponseTopic(Message):
    __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")

    def __init__(
        self,
        *,
        error_code: int = 0,
        name: str | None = "",
        topic_id: bytes = bytes(16),
        is_internal: bool = False,
        partitions: Sequence[DescribeTopicPartitionsResponsePartition] = (),
        topic_authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions = partitions
        self.topic_authorized_operations = topic_authorized_operations


class DescribeTopicPartitionsResponse(Message):
    __slots__ = ("throttle_time_ms", "topics", "next_cursor")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[DescribeTopicPartitionsResponseTopic] = (),
        next_cursor: DescribeTopicPartitionsCursor | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
        self.next_cursor = next_cursor


class ShareGroupHeartbeatRequest(Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "rack_id", "subscribed_topic_names")

    def __init__(
        self,
        *,
        group_id: str = "",
        member_id: str = "",
        member_epoch: int = 0,
        rack_id: str | None = None,
        subscribed_topic_names: Sequence[str] | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.rack_id = rack_id
        self.subscribed_topic_names = subscribed_topic_names


class ShareGroupHeartbeatResponseTopicPartitions(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareGroupHeartbeatResponseAssignment(Message):
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        *,
        topic_partitions: Sequence[ShareGroupHeartbeatResponseTopicPartitions] = (),
    ) -> None:
        self.topic_partitions = topic_partitions


class ShareGroupHeartbeatResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "member_id",
        "member_epoch",
        "heartbeat_interval_ms",
        "assignment",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int = 0,
        heartbeat_interval_ms: int = 0,
        assignment: ShareGroupHeartbeatResponseAssignment | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment = assignment


class ShareGroupDescribeRequest(Message):
    __slots__ = ("group_ids", "include_authorized_operations")

    def __init__(
        self,
        *,
        group_ids: Sequence[str] = (),
        include_authorized_operations: bool = False,
    ) -> None:
        self.group_ids = group_ids
        self.include_authorized_operations = include_authorized_operations


class ShareGroupDescribeResponseTopicPartitions(Message):
    __slots__ = ("topic_id", "topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        topic_name: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = partitions


class ShareGroupDescribeResponseAssignment(Message):
    __slots__ = ("topic_partitions",)

    def __init__(
        self,
        *,
        topic_partitions: Sequence[ShareGroupDescribeResponseTopicPartitions] = (),
    ) -> None:
        self.topic_partitions = topic_partitions


class ShareGroupDescribeResponseMember(Message):
    __slots__ = (
        "member_id",
        "rack_id",
        "member_epoch",
        "client_id",
        "client_host",
        "subscribed_topic_names",
        "assignment",
    )

    def __init__(
        self,
        *,
        member_id: str = "",
        rack_id: str | None = None,
        member_epoch: int = 0,
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: Sequence[str] = (),
        assignment: ShareGroupDescribeResponseAssignment | None = None,
    ) -> None:
        self.member_id = member_id
        self.rack_id = rack_id
        self.member_epoch = member_epoch
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = subscribed_topic_names
        self.assignment = assignment


class ShareGroupDescribeResponseGroup(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "group_epoch",
        "assignment_epoch",
        "assignor_name",
        "members",
        "authorized_operations",
    )

    def __init__(
        self,
        *,
        error_code: int = 0,
        error_message: str | None = None,
        group_id: str = "",
        group_state: str = "",
        group_epoch: int = 0,
        assignment_epoch: int = 0,
        assignor_name: str = "",
        members: Sequence[ShareGroupDescribeResponseMember] = (),
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.group_epoch = group_epoch
        self.assignment_epoch = assignment_epoch
        self.assignor_name = assignor_name
        self.members = members
        self.authorized_operations = authorized_operations


class ShareGroupDescribeResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        groups: Sequence[ShareGroupDescribeResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups


class ShareFetchRequestAcknowledgementBatch(Message):
    __slots__ = ("first_offset", "last_offset", "acknowledge_types")

    def __init__(
        self,
        *,
        first_offset: int = 0,
        last_offset: int = 0,
        acknowledge_types: Sequence[int] = (),
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.acknowledge_types = acknowledge_types


class ShareFetchRequestPartition(Message):
    __slots__ = ("partition_index", "acknowledgement_batches")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        acknowledgement_batches: Sequence[ShareFetchRequestAcknowledgementBatch] = (),
    ) -> None:
        self.partition_index = partition_index
        self.acknowledgement_batches = acknowledgement_batches


class ShareFetchRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ShareFetchRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareFetchRequestForgottenTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareFetchRequest(Message):
    __slots__ = (
        "group_id",
        "member_id",
        "share_session_epoch",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "max_records",
        "batch_size",
        "share_acquire_mode",
        "is_renew_ack",
        "topics",
        "forgotten_topics_data",
    )

    def __init__(
        self,
        *,
        group_id: str | None = None,
        member_id: str | None = "",
        share_session_epoch: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 0,
        max_bytes: int = 2147483647,
        max_records: int = 0,
        batch_size: int = 0,
        share_acquire_mode: int = 0,
        is_renew_ack: bool = False,
        topics: Sequence[ShareFetchRequestTopic] = (),
        forgotten_topics_data: Sequence[ShareFetchRequestForgottenTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.share_session_epoch = share_session_epoch
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_records = max_records
        self.batch_size = batch_size
        self.share_acquire_mode = share_acquire_mode
        self.is_renew_ack = is_renew_ack
        self.topics = topics
        self.forgotten_topics_data = forgotten_topics_data


class ShareFetchResponseLeader(Message):
    __slots__ = ("leader_id", "leader_epoch")

    def __init__(
        self,
        *,
        leader_id: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class ShareFetchResponseAcquiredRecords(Message):
    __slots__ = ("first_offset", "last_offset", "delivery_count")

    def __init__(
        self,
        *,
        first_offset: int = 0,
        last_offset: int = 0,
        delivery_count: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.delivery_count = delivery_count


class ShareFetchResponsePartition(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "error_message",
        "acknowledge_error_code",
        "acknowledge_error_message",
        "current_leader",
        "records",
        "acquired_records",
    )

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        acknowledge_error_code: int = 0,
        acknowledge_error_message: str | None = None,
        current_leader: ShareFetchResponseLeader | None = None,
        records: Records | None = None,
        acquired_records: Sequence[ShareFetchResponseAcquiredRecords] = (),
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.acknowledge_error_code = acknowledge_error_code
        self.acknowledge_error_message = acknowledge_error_message
        self.current_leader = current_leader
        self.records = records
        self.acquired_records = acquired_records


class ShareFetchResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ShareFetchResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareFetchResponseNodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port", "rack")

    def __init__(
        self,
        *,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class ShareFetchResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "acquisition_lock_timeout_ms",
        "responses",
        "node_endpoints",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        acquisition_lock_timeout_ms: int = 0,
        responses: Sequence[ShareFetchResponseTopic] = (),
        node_endpoints: Sequence[ShareFetchResponseNodeEndpoint] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.acquisition_lock_timeout_ms = acquisition_lock_timeout_ms
        self.responses = responses
        self.node_endpoints = node_endpoints


class ShareAcknowledgeRequestAcknowledgementBatch(Message):
    __slots__ = ("first_offset", "last_offset", "acknowledge_types")

    def __init__(
        self,
        *,
        first_offset: int = 0,
        last_offset: int = 0,
        acknowledge_types: Sequence[int] = (),
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.acknowledge_types = acknowledge_types


class ShareAcknowledgeRequestPartition(Message):
    __slots__ = ("partition_index", "acknowledgement_batches")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        acknowledgement_batches: Sequence[ShareAcknowledgeRequestAcknowledgementBatch] = (),
    ) -> None:
        self.partition_index = partition_index
        self.acknowledgement_batches = acknowledgement_batches


class ShareAcknowledgeRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ShareAcknowledgeRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareAcknowledgeRequest(Message):
    __slots__ = ("group_id", "member_id", "share_session_epoch", "is_renew_ack", "topics")

    def __init__(
        self,
        *,
        group_id: str | None = None,
        member_id: str | None = "",
        share_session_epoch: int = 0,
        is_renew_ack: bool = False,
        topics: Sequence[ShareAcknowledgeRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.share_session_epoch = share_session_epoch
        self.is_renew_ack = is_renew_ack
        self.topics = topics


class ShareAcknowledgeResponseLeader(Message):
    __slots__ = ("leader_id", "leader_epoch")

    def __init__(
        self,
        *,
        leader_id: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class ShareAcknowledgeResponsePartition(Message):
    __slots__ = ("partition_index", "error_code", "error_message", "current_leader")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        current_leader: ShareAcknowledgeResponseLeader | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.current_leader = current_leader


class ShareAcknowledgeResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ShareAcknowledgeResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ShareAcknowledgeResponseNodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port", "rack")

    def __init__(
        self,
        *,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        rack: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class ShareAcknowledgeResponse(Message):
    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "acquisition_lock_timeout_ms",
        "responses",
        "node_endpoints",
    )

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        acquisition_lock_timeout_ms: int = 0,
        responses: Sequence[ShareAcknowledgeResponseTopic] = (),
        node_endpoints: Sequence[ShareAcknowledgeResponseNodeEndpoint] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.acquisition_lock_timeout_ms = acquisition_lock_timeout_ms
        self.responses = responses
        self.node_endpoints = node_endpoints


class InitializeShareGroupStateRequestPartition(Message):
    __slots__ = ("partition", "state_epoch", "start_offset")

    def __init__(
        self,
        *,
        partition: int = 0,
        state_epoch: int = 0,
        start_offset: int = 0,
    ) -> None:
        self.partition = partition
        self.state_epoch = state_epoch
        self.start_offset = start_offset


class InitializeShareGroupStateRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[InitializeShareGroupStateRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class InitializeShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[InitializeShareGroupStateRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class InitializeShareGroupStateResponsePartition(Message):
    __slots__ = ("partition", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.error_message = error_message


class InitializeShareGroupStateResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[InitializeShareGroupStateResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class InitializeShareGroupStateResponse(Message):
    __slots__ = ("results",)

    def __init__(
        self,
        *,
        results: Sequence[InitializeShareGroupStateResponseTopic] = (),
    ) -> None:
        self.results = results


class ReadShareGroupStateRequestPartition(Message):
    __slots__ = ("partition", "leader_epoch")

    def __init__(
        self,
        *,
        partition: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch


class ReadShareGroupStateRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ReadShareGroupStateRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ReadShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[ReadShareGroupStateRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class ReadShareGroupStateResponseStateBatch(Message):
    __slots__ = ("first_offset", "last_offset", "delivery_state", "delivery_count")

    def __init__(
        self,
        *,
        first_offset: int = 0,
        last_offset: int = 0,
        delivery_state: int = 0,
        delivery_count: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.delivery_state = delivery_state
        self.delivery_count = delivery_count


class ReadShareGroupStateResponsePartition(Message):
    __slots__ = (
        "partition",
        "error_code",
        "error_message",
        "state_epoch",
        "start_offset",
        "state_batches",
        "flowstone_delays",
        "flowstone_letters",
        "flowstone_given_up",
    )

    def __init__(
        self,
        *,
        partition: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        state_epoch: int = 0,
        start_offset: int = 0,
        state_batches: Sequence[ReadShareGroupStateResponseStateBatch] = (),
        flowstone_delays: Bytes | None = None,
        flowstone_letters: Bytes | None = None,
        flowstone_given_up: Bytes | None = None,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.error_message = error_message
        self.state_epoch = state_epoch
        self.start_offset = start_offset
        self.state_batches = state_batches
        self.flowstone_delays = flowstone_delays
        self.flowstone_letters = flowstone_letters
        self.flowstone_given_up = flowstone_given_up


class ReadShareGroupStateResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ReadShareGroupStateResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ReadShareGroupStateResponse(Message):
    __slots__ = ("results",)

    def __init__(
        self,
        *,
        results: Sequence[ReadShareGroupStateResponseTopic] = (),
    ) -> None:
        self.results = results


class WriteShareGroupStateRequestStateBatch(Message):
    __slots__ = ("first_offset", "last_offset", "delivery_state", "delivery_count")

    def __init__(
        self,
        *,
        first_offset: int = 0,
        last_offset: int = 0,
        delivery_state: int = 0,
        delivery_count: int = 0,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.delivery_state = delivery_state
        self.delivery_count = delivery_count


class WriteShareGroupStateRequestPartition(Message):
    __slots__ = (
        "partition",
        "state_epoch",
        "leader_epoch",
        "start_offset",
        "delivery_complete_count",
        "state_batches",
        "flowstone_delays",
        "flowstone_letters",
        "flowstone_given_up",
    )

    def __init__(
        self,
        *,
        partition: int = 0,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start_offset: int = 0,
        delivery_complete_count: int = -1,
        state_batches: Sequence[WriteShareGroupStateRequestStateBatch] = (),
        flowstone_delays: Bytes | None = None,
        flowstone_letters: Bytes | None = None,
        flowstone_given_up: Bytes | None = None,
    ) -> None:
        self.partition = partition
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.delivery_complete_count = delivery_complete_count
        self.state_batches = state_batches
        self.flowstone_delays = flowstone_delays
        self.flowstone_letters = flowstone_letters
        self.flowstone_given_up = flowstone_given_up


class WriteShareGroupStateRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[WriteShareGroupStateRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class WriteShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[WriteShareGroupStateRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class WriteShareGroupStateResponsePartition(Message):
    __slots__ = ("partition", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.error_message = error_message


class WriteShareGroupStateResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[WriteShareGroupStateResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class WriteShareGroupStateResponse(Message):
    __slots__ = ("results",)

    def __init__(
        self,
        *,
        results: Sequence[WriteShareGroupStateResponseTopic] = (),
    ) -> None:
        self.results = results


class DeleteShareGroupStateRequestPartition(Message):
    __slots__ = ("partition",)

    def __init__(
        self,
        *,
        partition: int = 0,
    ) -> None:
        self.partition = partition


class DeleteShareGroupStateRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[DeleteShareGroupStateRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class DeleteShareGroupStateRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[DeleteShareGroupStateRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class DeleteShareGroupStateResponsePartition(Message):
    __slots__ = ("partition", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.error_message = error_message


class DeleteShareGroupStateResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[DeleteShareGroupStateResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class DeleteShareGroupStateResponse(Message):
    __slots__ = ("results",)

    def __init__(
        self,
        *,
        results: Sequence[DeleteShareGroupStateResponseTopic] = (),
    ) -> None:
        self.results = results


class ReadShareGroupStateSummaryRequestPartition(Message):
    __slots__ = ("partition", "leader_epoch")

    def __init__(
        self,
        *,
        partition: int = 0,
        leader_epoch: int = 0,
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch


class ReadShareGroupStateSummaryRequestTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ReadShareGroupStateSummaryRequestPartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ReadShareGroupStateSummaryRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[ReadShareGroupStateSummaryRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class ReadShareGroupStateSummaryResponsePartition(Message):
    __slots__ = (
        "partition",
        "error_code",
        "error_message",
        "state_epoch",
        "leader_epoch",
        "start_offset",
        "delivery_complete_count",
    )

    def __init__(
        self,
        *,
        partition: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        start_offset: int = 0,
        delivery_complete_count: int = -1,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.error_message = error_message
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.start_offset = start_offset
        self.delivery_complete_count = delivery_complete_count


class ReadShareGroupStateSummaryResponseTopic(Message):
    __slots__ = ("topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_id: bytes = bytes(16),
        partitions: Sequence[ReadShareGroupStateSummaryResponsePartition] = (),
    ) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ReadShareGroupStateSummaryResponse(Message):
    __slots__ = ("results",)

    def __init__(
        self,
        *,
        results: Sequence[ReadShareGroupStateSummaryResponseTopic] = (),
    ) -> None:
        self.results = results


class DescribeShareGroupOffsetsRequestTopic(Message):
    __slots__ = ("topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partitions: Sequence[int] = (),
    ) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class DescribeShareGroupOffsetsRequestGroup(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class DescribeShareGroupOffsetsRequest(Message):
    __slots__ = ("groups",)

    def __init__(
        self,
        *,
        groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = (),
    ) -> None:
        self.groups = groups


class DescribeShareGroupOffsetsResponsePartition(Message):
    __slots__ = ("partition_index", "start_offset", "leader_epoch", "lag", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        start_offset: int = 0,
        leader_epoch: int = 0,
        lag: int = -1,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.start_offset = start_offset
        self.leader_epoch = leader_epoch
        self.lag = lag
        self.error_code = error_code
        self.error_message = error_message


class DescribeShareGroupOffsetsResponseTopic(Message):
    __slots__ = ("topic_name", "topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.partitions = partitions


class DescribeShareGroupOffsetsResponseGroup(Message):
    __slots__ = ("group_id", "topics", "error_code", "error_message")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = (),
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.topics = topics
        self.error_code = error_code
        self.error_message = error_message


class DescribeShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "groups")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups


class AlterShareGroupOffsetsRequestPartition(Message):
    __slots__ = ("partition_index", "start_offset")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        start_offset: int = 0,
    ) -> None:
        self.partition_index = partition_index
        self.start_offset = start_offset


class AlterShareGroupOffsetsRequestTopic(Message):
    __slots__ = ("topic_name", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class AlterShareGroupOffsetsRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[AlterShareGroupOffsetsRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class AlterShareGroupOffsetsResponsePartition(Message):
    __slots__ = ("partition_index", "error_code", "error_message")

    def __init__(
        self,
        *,
        partition_index: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


class AlterShareGroupOffsetsResponseTopic(Message):
    __slots__ = ("topic_name", "topic_id", "partitions")

    def __init__(
        self,
        *,
        topic_name: str = "",
        topic_id: bytes = bytes(16),
        partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = (),
    ) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.partitions = partitions


class AlterShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        responses: Sequence[AlterShareGroupOffsetsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.responses = responses


class DeleteShareGroupOffsetsRequestTopic(Message):
    __slots__ = ("topic_name",)

    def __init__(
        self,
        *,
        topic_name: str = "",
    ) -> None:
        self.topic_name = topic_name


class DeleteShareGroupOffsetsRequest(Message):
    __slots__ = ("group_id", "topics")

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics


class DeleteShareGroupOffsetsResponseTopic(Message):
    __slots__ = ("topic_name", "topic_id", "error_code", "error_message")

    def __init__(
        self,
        *,
        topic_name: str = "",
        topic_id: bytes = bytes(16),
        error_code: int = 0,
        error_message: str | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.topic_id = topic_id
        self.error_code = error_code
        self.error_message = error_message


class DeleteShareGroupOffsetsResponse(Message):
    __slots__ = ("throttle_time_ms", "error_code", "error_message", "responses")

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int = 0,
        error_message: str | None = None,
        responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.responses = responses


API_TABLE: tuple[tuple[int, str, int, int, int, type[Message], type[Message]], ...] = (
    (0, "Produce", 3, 13, 9, ProduceRequest, ProduceResponse),
    (1, "Fetch", 4, 18, 12, FetchRequest, FetchResponse),
    (2, "ListOffsets", 1, 11, 6, ListOffsetsRequest, ListOffsetsResponse),
    (3, "Metadata", 0, 13, 9, MetadataRequest, MetadataResponse),
    (8, "OffsetCommit", 2, 10, 8, OffsetCommitRequest, OffsetCommitResponse),
    (9, "OffsetFetch", 1, 10, 6, OffsetFetchRequest, OffsetFetchResponse),
    (10, "FindCoordinator", 0, 6, 3, FindCoordinatorRequest, FindCoordinatorResponse),
    (11, "JoinGroup", 0, 9, 6, JoinGroupRequest, JoinGroupResponse),
    (12, "Heartbeat", 0, 4, 4, HeartbeatRequest, HeartbeatResponse),
    (13, "LeaveGroup", 0, 5, 4, LeaveGroupRequest, LeaveGroupResponse),
    (14, "SyncGroup", 0, 5, 4, SyncGroupRequest, SyncGroupResponse),
    (15, "DescribeGroups", 0, 6, 5, DescribeGroupsRequest, DescribeGroupsResponse),
    (16, "ListGroups", 0, 5, 3, ListGroupsRequest, ListGroupsResponse),
    (17, "SaslHandshake", 0, 1, 2, SaslHandshakeRequest, SaslHandshakeResponse),
    (18, "ApiVersions", 0, 4, 3, ApiVersionsRequest, ApiVersionsResponse),
    (19, "CreateTopics", 2, 7, 5, CreateTopicsRequest, CreateTopicsResponse),
    (20, "DeleteTopics", 1, 6, 4, DeleteTopicsRequest, DeleteTopicsResponse),
    (21, "DeleteRecords", 0, 2, 2, DeleteRecordsRequest, DeleteRecordsResponse),
    (22, "InitProducerId", 0, 5, 2, InitProducerIdRequest, InitProducerIdResponse),
    (23, "OffsetForLeaderEpoch", 2, 4, 4, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    (24, "AddPartitionsToTxn", 0, 5, 3, AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    (25, "AddOffsetsToTxn", 0, 4, 3, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    (26, "EndTxn", 0, 5, 3, EndTxnRequest, EndTxnResponse),
    (27, "WriteTxnMarkers", 1, 2, 1, WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    (28, "TxnOffsetCommit", 0, 5, 3, TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    (29, "DescribeAcls", 1, 3, 2, DescribeAclsRequest, DescribeAclsResponse),
    (30, "CreateAcls", 1, 3, 2, CreateAclsRequest, CreateAclsResponse),
    (31, "DeleteAcls", 1, 3, 2, DeleteAclsRequest, DeleteAclsResponse),
    (32, "DescribeConfigs", 1, 4, 4, DescribeConfigsRequest, DescribeConfigsResponse),
    (33, "AlterConfigs", 0, 2, 2, AlterConfigsRequest, AlterConfigsResponse),
    (34, "AlterReplicaLogDirs", 1, 2, 2, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    (35, "DescribeLogDirs", 1, 5, 2, DescribeLogDirsRequest, DescribeLogDirsResponse),
    (36, "SaslAuthenticate", 0, 2, 2, SaslAuthenticateRequest, SaslAuthenticateResponse),
    (37, "CreatePartitions", 0, 3, 2, CreatePartitionsRequest, CreatePartitionsResponse),
    (38, "CreateDelegationToken", 1, 3, 2, CreateDelegationTokenRequest, CreateDelegationTokenResponse),
    (39, "RenewDelegationToken", 1, 2, 2, RenewDelegationTokenRequest, RenewDelegationTokenResponse),
    (40, "ExpireDelegationToken", 1, 2, 2, ExpireDelegationTokenRequest, ExpireDelegationTokenResponse),
    (41, "DescribeDelegationToken", 1, 3, 2, DescribeDelegationTokenRequest, DescribeDelegationTokenResponse),
    (42, "DeleteGroups", 0, 2, 2, DeleteGroupsRequest, DeleteGroupsResponse),
    (43, "ElectLeaders", 0, 2, 2, ElectLeadersRequest, ElectLeadersResponse),
    (44, "IncrementalAlterConfigs", 0, 1, 1, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    (
        45,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        AlterPartitionReassignmentsRequest,
        AlterPartitionReassignmentsResponse,
    ),
    (46, "ListPartitionReassignments", 0, 0, 0, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    (47, "OffsetDelete", 0, 0, 1, OffsetDeleteRequest, OffsetDeleteResponse),
    (48, "DescribeClientQuotas", 0, 1, 1, DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    (49, "AlterClientQuotas", 0, 1, 1, AlterClientQuotasRequest, AlterClientQuotasResponse),
    (
        50,
        "DescribeUserScramCredentials",
        0,
        0,
        0,
        DescribeUserScramCredentialsRequest,
        DescribeUserScramCredentialsResponse,
    ),
    (51, "AlterUserScramCredentials", 0, 0, 0, AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    (55, "DescribeQuorum", 0, 2, 0, DescribeQuorumRequest, DescribeQuorumResponse),
    (57, "UpdateFeatures", 0, 2, 0, UpdateFeaturesRequest, UpdateFeaturesResponse),
    (60, "DescribeCluster", 0, 2, 0, DescribeClusterRequest, DescribeClusterResponse),
    (61, "DescribeProducers", 0, 0, 0, DescribeProducersRequest, DescribeProducersResponse),
    (64, "UnregisterBroker", 0, 0, 0, UnregisterBrokerRequest, UnregisterBrokerResponse),
    (65, "DescribeTransactions", 0, 0, 0, DescribeTransactionsRequest, DescribeTransactionsResponse),
    (66, "ListTransactions", 0, 2, 0, ListTransactionsRequest, ListTransactionsResponse),
    (68, "ConsumerGroupHeartbeat", 0, 1, 0, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    (69, "ConsumerGroupDescribe", 0, 1, 0, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    (71, "GetTelemetrySubscriptions", 0, 0, 0, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
    (72, "PushTelemetry", 0, 0, 0, PushTelemetryRequest, PushTelemetryResponse),
    (74, "ListConfigResources", 0, 1, 0, ListConfigResourcesRequest, ListConfigResourcesResponse),
    (75, "DescribeTopicPartitions", 0, 0, 0, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
    (76, "ShareGroupHeartbeat", 1, 1, 0, ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
    (77, "ShareGroupDescribe", 1, 1, 0, ShareGroupDescribeRequest, ShareGroupDescribeResponse),
    (78, "ShareFetch", 1, 2, 0, ShareFetchRequest, ShareFetchResponse),
    (79, "ShareAcknowledge", 1, 2, 0, ShareAcknowledgeRequest, ShareAcknowledgeResponse),
    (83, "InitializeShareGroupState", 0, 0, 0, InitializeShareGroupStateRequest, InitializeShareGroupStateResponse),
    (84, "ReadShareGroupState", 0, 0, 0, ReadShareGroupStateRequest, ReadShareGroupStateResponse),
    (85, "WriteShareGroupState", 0, 1, 0, WriteShareGroupStateRequest, WriteShareGroupStateResponse),
    (86, "DeleteShareGroupState", 0, 0, 0, DeleteShareGroupStateRequest, DeleteShareGroupStateResponse),
    (87, "ReadShareGroupStateSummary", 0, 1, 0, ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse),
    (90, "DescribeShareGroupOffsets", 0, 1, 0, DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
    (91, "AlterShareGroupOffsets", 0, 0, 0, AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
    (92, "DeleteShareGroupOffsets", 0, 0, 0, DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
)

__all__ = [
    "ProduceRequestPartition",
    "ProduceRequestTopic",
    "ProduceRequest",
    "ProduceResponseRecordError",
    "ProduceResponseLeader",
    "ProduceResponsePartition",
    "ProduceResponseTopic",
    "ProduceResponseNodeEndpoint",
    "ProduceResponse",
    "FetchRequestReplicaState",
    "FetchRequestPartition",
    "FetchRequestTopic",
    "FetchRequestForgottenTopic",
    "FetchRequest",
    "FetchResponseEpochEndOffset",
    "FetchResponseLeader",
    "FetchResponseSnapshotId",
    "FetchResponseAbortedTransaction",
    "FetchResponsePartition",
    "FetchResponseTopic",
    "FetchResponseNodeEndpoint",
    "FetchResponse",
    "ListOffsetsRequestPartition",
    "ListOffsetsRequestTopic",
    "ListOffsetsRequest",
    "ListOffsetsResponsePartition",
    "ListOffsetsResponseTopic",
    "ListOffsetsResponse",
    "MetadataRequestTopic",
    "MetadataRequest",
    "MetadataResponseBroker",
    "MetadataResponsePartition",
    "MetadataResponseTopic",
    "MetadataResponse",
    "OffsetCommitRequestPartition",
    "OffsetCommitRequestTopic",
    "OffsetCommitRequest",
    "OffsetCommitResponsePartition",
    "OffsetCommitResponseTopic",
    "OffsetCommitResponse",
    "OffsetFetchRequestTopic",
    "OffsetFetchRequestTopics",
    "OffsetFetchRequestGroup",
    "OffsetFetchRequest",
    "OffsetFetchResponsePartition",
    "OffsetFetchResponseTopic",
    "OffsetFetchResponseTopics",
    "OffsetFetchResponseGroup",
    "OffsetFetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponseCoordinator",
    "FindCoordinatorResponse",
    "JoinGroupRequestProtocol",
    "JoinGroupRequest",
    "JoinGroupResponseMember",
    "JoinGroupResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "LeaveGroupRequestMember",
    "LeaveGroupRequest",
    "LeaveGroupResponseMember",
    "LeaveGroupResponse",
    "SyncGroupRequestAssignment",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponseMember",
    "DescribeGroupsResponseGroup",
    "DescribeGroupsResponse",
    "ListGroupsRequest",
    "ListGroupsResponseGroup",
    "ListGroupsResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponseApiVersion",
    "ApiVersionsResponseSupportedFeature",
    "ApiVersionsResponseFinalizedFeature",
    "ApiVersionsResponse",
    "CreateTopicsRequestAssignment",
    "CreateTopicsRequestConfig",
    "CreateTopicsRequestTopic",
    "CreateTopicsRequest",
    "CreateTopicsResponseConfig",
    "CreateTopicsResponseTopic",
    "CreateTopicsResponse",
    "DeleteTopicsRequestTopic",
    "DeleteTopicsRequest",
    "DeleteTopicsResponseTopic",
    "DeleteTopicsResponse",
    "DeleteRecordsRequestPartition",
    "DeleteRecordsRequestTopic",
    "DeleteRecordsRequest",
    "DeleteRecordsResponsePartition",
    "DeleteRecordsResponseTopic",
    "DeleteRecordsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "OffsetForLeaderEpochRequestPartition",
    "OffsetForLeaderEpochRequestTopic",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponsePartition",
    "OffsetForLeaderEpochResponseTopic",
    "OffsetForLeaderEpochResponse",
    "AddPartitionsToTxnRequestTopic",
    "AddPartitionsToTxnRequestTransaction",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponsePartition",
    "AddPartitionsToTxnResponseTopic",
    "AddPartitionsToTxnResponseTransaction",
    "AddPartitionsToTxnResponse",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "WriteTxnMarkersRequestTopic",
    "WriteTxnMarkersRequestMarker",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponsePartition",
    "WriteTxnMarkersResponseTopic",
    "WriteTxnMarkersResponseMarker",
    "WriteTxnMarkersResponse",
    "TxnOffsetCommitRequestPartition",
    "TxnOffsetCommitRequestTopic",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponsePartition",
    "TxnOffsetCommitResponseTopic",
    "TxnOffsetCommitResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponseAcl",
    "DescribeAclsResponseResource",
    "DescribeAclsResponse",
    "CreateAclsRequestCreation",
    "CreateAclsRequest",
    "CreateAclsResponseResult",
    "CreateAclsResponse",
    "DeleteAclsRequestFilter",
    "DeleteAclsRequest",
    "DeleteAclsResponseMatchingAcl",
    "DeleteAclsResponseFilterResult",
    "DeleteAclsResponse",
    "DescribeConfigsRequestResource",
    "DescribeConfigsRequest",
    "DescribeConfigsResponseSynonym",
    "DescribeConfigsResponseConfig",
    "DescribeConfigsResponseResource",
    "DescribeConfigsResponse",
    "AlterConfigsRequestConfig",
    "AlterConfigsRequestResource",
    "AlterConfigsRequest",
    "AlterConfigsResponseResource",
    "AlterConfigsResponse",
    "AlterReplicaLogDirsRequestTopic",
    "AlterReplicaLogDirsRequestDir",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponsePartition",
    "AlterReplicaLogDirsResponseResult",
    "AlterReplicaLogDirsResponse",
    "DescribeLogDirsRequestTopic",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponsePartition",
    "DescribeLogDirsResponseTopic",
    "DescribeLogDirsResponseLogDir",
    "DescribeLogDirsResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "CreatePartitionsRequestAssignment",
    "CreatePartitionsRequestTopic",
    "CreatePartitionsRequest",
    "CreatePartitionsResponseTopic",
    "CreatePartitionsResponse",
    "CreateDelegationTokenRequestCreatableRenewers",
    "CreateDelegationTokenRequest",
    "CreateDelegationTokenResponse",
    "RenewDelegationTokenRequest",
    "RenewDelegationTokenResponse",
    "ExpireDelegationTokenRequest",
    "ExpireDelegationTokenResponse",
    "DescribeDelegationTokenRequestDescribeDelegationTokenOwner",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponseDescribedDelegationTokenRenewer",
    "DescribeDelegationTokenResponseDescribedDelegationToken",
    "DescribeDelegationTokenResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponseResult",
    "DeleteGroupsResponse",
    "ElectLeadersRequestTopicPartitions",
    "ElectLeadersRequest",
    "ElectLeadersResponsePartitionResult",
    "ElectLeadersResponseReplicaElectionResult",
    "ElectLeadersResponse",
    "IncrementalAlterConfigsRequestConfig",
    "IncrementalAlterConfigsRequestResource",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponseResource",
    "IncrementalAlterConfigsResponse",
    "AlterPartitionReassignmentsRequestPartition",
    "AlterPartitionReassignmentsRequestTopic",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponsePartition",
    "AlterPartitionReassignmentsResponseTopic",
    "AlterPartitionReassignmentsResponse",
    "ListPartitionReassignmentsRequestTopic",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponsePartition",
    "ListPartitionReassignmentsResponseTopic",
    "ListPartitionReassignmentsResponse",
    "OffsetDeleteRequestPartition",
    "OffsetDeleteRequestTopic",
    "OffsetDeleteRequest",
    "OffsetDeleteResponsePartition",
    "OffsetDeleteResponseTopic",
    "OffsetDeleteResponse",
    "DescribeClientQuotasRequestComponent",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponseEntity",
    "DescribeClientQuotasResponseValue",
    "DescribeClientQuotasResponseEntry",
    "DescribeClientQuotasResponse",
    "AlterClientQuotasRequestEntity",
    "AlterClientQuotasRequestOp",
    "AlterClientQuotasRequestEntry",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponseEntity",
    "AlterClientQuotasResponseEntry",
    "AlterClientQuotasResponse",
    "DescribeUserScramCredentialsRequestUserName",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponseCredentialInfo",
    "DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult",
    "DescribeUserScramCredentialsResponse",
    "AlterUserScramCredentialsRequestScramCredentialDeletion",
    "AlterUserScramCredentialsRequestScramCredentialUpsertion",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponseAlterUserScramCredentialsResult",
    "AlterUserScramCredentialsResponse",
    "DescribeQuorumRequestPartition",
    "DescribeQuorumRequestTopic",
    "DescribeQuorumRequest",
    "DescribeQuorumResponseReplica",
    "DescribeQuorumResponsePartition",
    "DescribeQuorumResponseTopic",
    "DescribeQuorumResponseListener",
    "DescribeQuorumResponseNode",
    "DescribeQuorumResponse",
    "UpdateFeaturesRequestFeatureUpdate",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponseResult",
    "UpdateFeaturesResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponseBroker",
    "DescribeClusterResponse",
    "DescribeProducersRequestTopic",
    "DescribeProducersRequest",
    "DescribeProducersResponseProducer",
    "DescribeProducersResponsePartition",
    "DescribeProducersResponseTopic",
    "DescribeProducersResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponseTopic",
    "DescribeTransactionsResponseTransaction",
    "DescribeTransactionsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponseTransaction",
    "ListTransactionsResponse",
    "ConsumerGroupHeartbeatRequestTopicPartitions",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponseTopicPartitions",
    "ConsumerGroupHeartbeatResponseAssignment",
    "ConsumerGroupHeartbeatResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponseTopicPartitions",
    "ConsumerGroupDescribeResponseAssignment",
    "ConsumerGroupDescribeResponseMember",
    "ConsumerGroupDescribeResponseGroup",
    "ConsumerGroupDescribeResponse",
    "GetTelemetrySubscriptionsRequest",
    "GetTelemetrySubscriptionsResponse",
    "PushTelemetryRequest",
    "PushTelemetryResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponseResource",
    "ListConfigResourcesResponse",
    "DescribeTopicPartitionsRequestTopic",
    "DescribeTopicPartitionsCursor",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponsePartition",
    "DescribeTopicPartitionsResponseTopic",
    "DescribeTopicPartitionsResponse",
    "ShareGroupHeartbeatRequest",
    "ShareGroupHeartbeatResponseTopicPartitions",
    "ShareGroupHeartbeatResponseAssignment",
    "ShareGroupHeartbeatResponse",
    "ShareGroupDescribeRequest",
    "ShareGroupDescribeResponseTopicPartitions",
    "ShareGroupDescribeResponseAssignment",
    "ShareGroupDescribeResponseMember",
    "ShareGroupDescribeResponseGroup",
    "ShareGroupDescribeResponse",
    "ShareFetchRequestAcknowledgementBatch",
    "ShareFetchRequestPartition",
    "ShareFetchRequestTopic",
    "ShareFetchRequestForgottenTopic",
    "ShareFetchRequest",
    "ShareFetchResponseLeader",
    "ShareFetchResponseAcquiredRecords",
    "ShareFetchResponsePartition",
    "ShareFetchResponseTopic",
    "ShareFetchResponseNodeEndpoint",
    "ShareFetchResponse",
    "ShareAcknowledgeRequestAcknowledgementBatch",
    "ShareAcknowledgeRequestPartition",
    "ShareAcknowledgeRequestTopic",
    "ShareAcknowledgeRequest",
    "ShareAcknowledgeResponseLeader",
    "ShareAcknowledgeResponsePartition",
    "ShareAcknowledgeResponseTopic",
    "ShareAcknowledgeResponseNodeEndpoint",
    "ShareAcknowledgeResponse",
    "InitializeShareGroupStateRequestPartition",
    "InitializeShareGroupStateRequestTopic",
    "InitializeShareGroupStateRequest",
    "InitializeShareGroupStateResponsePartition",
    "InitializeShareGroupStateResponseTopic",
    "InitializeShareGroupStateResponse",
    "ReadShareGroupStateRequestPartition",
    "ReadShareGroupStateRequestTopic",
    "ReadShareGroupStateRequest",
    "ReadShareGroupStateResponseStateBatch",
    "ReadShareGroupStateResponsePartition",
    "ReadShareGroupStateResponseTopic",
    "ReadShareGroupStateResponse",
    "WriteShareGroupStateRequestStateBatch",
    "WriteShareGroupStateRequestPartition",
    "WriteShareGroupStateRequestTopic",
    "WriteShareGroupStateRequest",
    "WriteShareGroupStateResponsePartition",
    "WriteShareGroupStateResponseTopic",
    "WriteShareGroupStateResponse",
    "DeleteShareGroupStateRequestPartition",
    "DeleteShareGroupStateRequestTopic",
    "DeleteShareGroupStateRequest",
    "DeleteShareGroupStateResponsePartition",
    "DeleteShareGroupStateResponseTopic",
    "DeleteShareGroupStateResponse",
    "ReadShareGroupStateSummaryRequestPartition",
    "ReadShareGroupStateSummaryRequestTopic",
    "ReadShareGroupStateSummaryRequest",
    "ReadShareGroupStateSummaryResponsePartition",
    "ReadShareGroupStateSummaryResponseTopic",
    "ReadShareGroupStateSummaryResponse",
    "DescribeShareGroupOffsetsRequestTopic",
    "DescribeShareGroupOffsetsRequestGroup",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponsePartition",
    "DescribeShareGroupOffsetsResponseTopic",
    "DescribeShareGroupOffsetsResponseGroup",
    "DescribeShareGroupOffsetsResponse",
    "AlterShareGroupOffsetsRequestPartition",
    "AlterShareGroupOffsetsRequestTopic",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsResponsePartition",
    "AlterShareGroupOffsetsResponseTopic",
    "AlterShareGroupOffsetsResponse",
    "DeleteShareGroupOffsetsRequestTopic",
    "DeleteShareGroupOffsetsRequest",
    "DeleteShareGroupOffsetsResponseTopic",
    "DeleteShareGroupOffsetsResponse",
]
