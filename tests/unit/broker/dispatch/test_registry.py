"""What the registry says of each API that is served."""

from __future__ import annotations

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.wire.apis import APIS

# Kafka's operations, as its authorizer is asked in each API's handler.
PERMISSIONS = {
    "Produce": {"TOPIC WRITE", "TRANSACTIONAL_ID WRITE"},
    "Fetch": {"TOPIC READ", "CLUSTER CLUSTER_ACTION"},
    "ListOffsets": {"TOPIC DESCRIBE"},
    "Metadata": {"TOPIC DESCRIBE", "TOPIC CREATE", "CLUSTER CREATE"},
    "OffsetCommit": {"GROUP READ", "TOPIC READ"},
    "OffsetFetch": {"GROUP DESCRIBE", "TOPIC DESCRIBE"},
    "FindCoordinator": {"GROUP DESCRIBE", "TRANSACTIONAL_ID DESCRIBE", "CLUSTER CLUSTER_ACTION"},
    "JoinGroup": {"GROUP READ"},
    "Heartbeat": {"GROUP READ"},
    "LeaveGroup": {"GROUP READ"},
    "SyncGroup": {"GROUP READ"},
    "DescribeGroups": {"GROUP DESCRIBE"},
    "ListGroups": {"CLUSTER DESCRIBE", "GROUP DESCRIBE"},
    "ApiVersions": set(),
    "CreateTopics": {"CLUSTER CREATE", "TOPIC CREATE", "TOPIC DESCRIBE_CONFIGS"},
    "DeleteTopics": {"TOPIC DESCRIBE", "TOPIC DELETE"},
    "DeleteRecords": {"TOPIC DELETE"},
    "InitProducerId": {"TRANSACTIONAL_ID WRITE", "CLUSTER IDEMPOTENT_WRITE", "TOPIC WRITE"},
    "AddPartitionsToTxn": {"TRANSACTIONAL_ID WRITE", "TOPIC WRITE", "CLUSTER CLUSTER_ACTION"},
    "AddOffsetsToTxn": {"TRANSACTIONAL_ID WRITE", "GROUP READ"},
    "EndTxn": {"TRANSACTIONAL_ID WRITE"},
    "WriteTxnMarkers": {"CLUSTER CLUSTER_ACTION", "CLUSTER ALTER"},
    "OffsetForLeaderEpoch": {"TOPIC DESCRIBE", "CLUSTER CLUSTER_ACTION"},
    "TxnOffsetCommit": {"GROUP READ", "TRANSACTIONAL_ID WRITE", "TOPIC READ"},
    "DescribeClientQuotas": {"CLUSTER DESCRIBE_CONFIGS"},
    "AlterClientQuotas": {"CLUSTER ALTER_CONFIGS"},
    "DescribeAcls": {"CLUSTER DESCRIBE"},
    "CreateAcls": {"CLUSTER ALTER"},
    "DeleteAcls": {"CLUSTER ALTER"},
    "DescribeConfigs": {"TOPIC DESCRIBE_CONFIGS", "GROUP DESCRIBE_CONFIGS", "CLUSTER DESCRIBE_CONFIGS"},
    "AlterConfigs": {"TOPIC ALTER_CONFIGS", "GROUP ALTER_CONFIGS", "CLUSTER ALTER_CONFIGS"},
    "AlterReplicaLogDirs": {"CLUSTER ALTER"},
    "DescribeLogDirs": {"CLUSTER DESCRIBE"},
    "CreatePartitions": {"TOPIC ALTER"},
    "DeleteGroups": {"GROUP DELETE"},
    "ElectLeaders": {"CLUSTER ALTER"},
    "IncrementalAlterConfigs": {"TOPIC ALTER_CONFIGS", "GROUP ALTER_CONFIGS", "CLUSTER ALTER_CONFIGS"},
    "AlterPartitionReassignments": {"CLUSTER ALTER"},
    "ListPartitionReassignments": {"CLUSTER DESCRIBE"},
    "OffsetDelete": {"GROUP DELETE", "TOPIC READ"},
    "SaslHandshake": set(),
    "SaslAuthenticate": set(),
    "DescribeUserScramCredentials": {"CLUSTER DESCRIBE"},
    "AlterUserScramCredentials": {"CLUSTER ALTER"},
    "CreateDelegationToken": {"USER CREATE_TOKENS"},
    "RenewDelegationToken": set(),
    "ExpireDelegationToken": set(),
    "DescribeDelegationToken": {"DELEGATION_TOKEN DESCRIBE", "USER DESCRIBE_TOKENS"},
    "UpdateFeatures": {"CLUSTER ALTER"},
    "DescribeCluster": set(),
    "DescribeProducers": {"TOPIC READ"},
    "ConsumerGroupHeartbeat": {"GROUP READ", "TOPIC DESCRIBE"},
    "ConsumerGroupDescribe": {"GROUP DESCRIBE", "TOPIC DESCRIBE"},
    "GetTelemetrySubscriptions": set(),
    "PushTelemetry": set(),
    "DescribeQuorum": {"CLUSTER DESCRIBE"},
    "ListConfigResources": {"CLUSTER DESCRIBE_CONFIGS"},
    "UnregisterBroker": {"CLUSTER ALTER"},
    "DescribeTransactions": {"TRANSACTIONAL_ID DESCRIBE", "TOPIC DESCRIBE"},
    "ListTransactions": {"TRANSACTIONAL_ID DESCRIBE"},
    "ShareFetch": {"GROUP READ", "TOPIC READ"},
    "ShareAcknowledge": {"GROUP READ", "TOPIC READ"},
    "InitializeShareGroupState": {"CLUSTER CLUSTER_ACTION"},
    "ReadShareGroupState": {"CLUSTER CLUSTER_ACTION"},
    "WriteShareGroupState": {"CLUSTER CLUSTER_ACTION"},
    "DeleteShareGroupState": {"CLUSTER CLUSTER_ACTION"},
    "ReadShareGroupStateSummary": {"CLUSTER CLUSTER_ACTION"},
    "DescribeTopicPartitions": {"TOPIC DESCRIBE"},
    "ShareGroupHeartbeat": {"GROUP READ", "TOPIC DESCRIBE"},
    "ShareGroupDescribe": {"GROUP DESCRIBE", "TOPIC DESCRIBE"},
    "DescribeShareGroupOffsets": {"GROUP DESCRIBE", "TOPIC DESCRIBE"},
    "AlterShareGroupOffsets": {"GROUP READ", "TOPIC READ"},
    "DeleteShareGroupOffsets": {"GROUP DELETE", "TOPIC READ"},
}


def test_every_api_declares_the_permissions_that_kafka_checks() -> None:
    declared = {
        APIS[key].name: {f"{each.resource_type.name} {each.operation.name}" for each in endpoint.permissions}
        for key, endpoint in ENDPOINTS.items()
    }
    assert declared == PERMISSIONS


def test_no_api_declares_a_permission_twice() -> None:
    for endpoint in ENDPOINTS.values():
        assert len(set(endpoint.permissions)) == len(endpoint.permissions)
