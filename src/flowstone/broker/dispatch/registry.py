"""The APIs this broker serves, one line each: key, handler, versions, and the permissions that authorization checks.

Dispatch finds the handlers here, and ApiVersions its list. An API that needs no permission says so (`NO_PERMISSIONS`).
Every advertised version is served, with one exception: Produce is advertised from version 0, because librdkafka
silently turns compression off otherwise (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from flowstone.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from flowstone.broker.handlers.cluster import describe_quorum, list_config_resources
from flowstone.broker.handlers.consumer import consumer_group_describe, consumer_group_heartbeat
from flowstone.broker.handlers.disks import alter_replica_log_dirs, describe_log_dirs
from flowstone.broker.handlers.security import (
    alter_user_scram_credentials,
    create_delegation_token,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from flowstone.broker.handlers.share import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    write_share_group_state,
)
from flowstone.broker.handlers.telemetry import get_telemetry_subscriptions, push_telemetry
from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.permissions import (
    CLUSTER_ACTION,
    CLUSTER_ALTER,
    CLUSTER_ALTER_CONFIGS,
    CLUSTER_CREATE,
    CLUSTER_DESCRIBE,
    CLUSTER_DESCRIBE_CONFIGS,
    CLUSTER_IDEMPOTENT_WRITE,
    DELEGATION_TOKEN_DESCRIBE,
    GROUP_ALTER_CONFIGS,
    GROUP_DELETE,
    GROUP_DESCRIBE,
    GROUP_DESCRIBE_CONFIGS,
    GROUP_READ,
    NO_PERMISSIONS,
    TOPIC_ALTER,
    TOPIC_ALTER_CONFIGS,
    TOPIC_CREATE,
    TOPIC_DELETE,
    TOPIC_DESCRIBE,
    TOPIC_DESCRIBE_CONFIGS,
    TOPIC_READ,
    TOPIC_WRITE,
    TRANSACTIONAL_ID_DESCRIBE,
    TRANSACTIONAL_ID_WRITE,
    USER_CREATE_TOKENS,
    USER_DESCRIBE_TOKENS,
    Permission,
)
from flowstone.wire.messages import ApiVersionsRequest, ApiVersionsResponse, ApiVersionsResponseApiVersion


class Endpoint(NamedTuple):
    """The handler, versions and permissions of one API."""

    api_key: int
    handler: Handler
    min_version: int
    max_version: int
    # The permissions that authorization will check; an API may need all of them, or one (`permissions`).
    permissions: tuple[Permission, ...]
    advertised_min_version: int
    # Handles requests above `large_requests.LARGE_REQUEST_BYTES`.
    large_handler: Handler


def _serve(
    key: int,
    handler: Handler,
    first: int,
    last: int,
    permissions: tuple[Permission, ...],
    *,
    advertised_from: int | None = None,
    large: Handler | None = None,
) -> Endpoint:
    advertised_min_version = first if advertised_from is None else advertised_from
    return Endpoint(key, handler, first, last, permissions, advertised_min_version, large or handler)


def _handle_api_versions(
    services: Services, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    return api_versions.handle(services, context, request, ADVERTISED)


_CONFIG_READS = (TOPIC_DESCRIBE_CONFIGS, GROUP_DESCRIBE_CONFIGS, CLUSTER_DESCRIBE_CONFIGS)
_CONFIG_CHANGES = (TOPIC_ALTER_CONFIGS, GROUP_ALTER_CONFIGS, CLUSTER_ALTER_CONFIGS)

ENDPOINTS: Mapping[int, Endpoint] = MappingProxyType(
    {
        endpoint.api_key: endpoint
        for endpoint in (
            _serve(0, produce.handle, 3, 13, (TOPIC_WRITE, TRANSACTIONAL_ID_WRITE), advertised_from=0),
            _serve(1, fetch.handle, 4, 18, (TOPIC_READ, CLUSTER_ACTION), large=fetch.handle_large),
            _serve(2, list_offsets.handle, 1, 11, (TOPIC_DESCRIBE,)),
            _serve(3, metadata.handle, 0, 13, (TOPIC_DESCRIBE, TOPIC_CREATE, CLUSTER_CREATE)),
            _serve(8, offset_commit.handle, 2, 10, (GROUP_READ, TOPIC_READ), large=offset_commit.handle_large),
            _serve(9, offset_fetch.handle, 1, 10, (GROUP_DESCRIBE, TOPIC_DESCRIBE)),
            _serve(10, find_coordinator.handle, 0, 6, (GROUP_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE, CLUSTER_ACTION)),
            _serve(11, join_group.handle, 0, 9, (GROUP_READ,)),
            _serve(12, heartbeat.handle, 0, 4, (GROUP_READ,)),
            _serve(13, leave_group.handle, 0, 5, (GROUP_READ,)),
            _serve(14, sync_group.handle, 0, 5, (GROUP_READ,)),
            _serve(15, describe_groups.handle, 0, 6, (GROUP_DESCRIBE,)),
            _serve(16, list_groups.handle, 0, 5, (CLUSTER_DESCRIBE, GROUP_DESCRIBE)),
            _serve(17, sasl_handshake.handle, 0, 1, NO_PERMISSIONS),
            _serve(18, _handle_api_versions, api_versions.VERSION_MIN, api_versions.VERSION_MAX, NO_PERMISSIONS),
            _serve(19, create_topics.handle, 2, 7, (CLUSTER_CREATE, TOPIC_CREATE, TOPIC_DESCRIBE_CONFIGS)),
            _serve(20, delete_topics.handle, 1, 6, (TOPIC_DESCRIBE, TOPIC_DELETE)),
            _serve(21, delete_records.handle, 0, 2, (TOPIC_DELETE,)),
            _serve(22, init_producer_id.handle, 0, 5, (TRANSACTIONAL_ID_WRITE, CLUSTER_IDEMPOTENT_WRITE, TOPIC_WRITE)),
            _serve(23, offset_for_leader_epoch.handle, 2, 4, (TOPIC_DESCRIBE, CLUSTER_ACTION)),
            _serve(24, add_partitions_to_txn.handle, 0, 5, (TRANSACTIONAL_ID_WRITE, TOPIC_WRITE, CLUSTER_ACTION)),
            _serve(25, add_offsets_to_txn.handle, 0, 4, (TRANSACTIONAL_ID_WRITE, GROUP_READ)),
            _serve(26, end_txn.handle, 0, 5, (TRANSACTIONAL_ID_WRITE,)),
            _serve(27, write_txn_markers.handle, 1, 2, (CLUSTER_ACTION, CLUSTER_ALTER)),
            _serve(28, txn_offset_commit.handle, 0, 5, (GROUP_READ, TRANSACTIONAL_ID_WRITE, TOPIC_READ)),
            _serve(29, describe_acls.handle, 1, 3, (CLUSTER_DESCRIBE,)),
            _serve(30, create_acls.handle, 1, 3, (CLUSTER_ALTER,)),
            _serve(31, delete_acls.handle, 1, 3, (CLUSTER_ALTER,)),
            _serve(32, describe_configs.handle, 1, 4, _CONFIG_READS),
            _serve(33, alter_configs.handle, 0, 2, _CONFIG_CHANGES),
            _serve(34, alter_replica_log_dirs.handle, 1, 2, (CLUSTER_ALTER,)),
            _serve(35, describe_log_dirs.handle, 1, 5, (CLUSTER_DESCRIBE,)),
            _serve(36, sasl_authenticate.handle, 0, 2, NO_PERMISSIONS),
            _serve(37, create_partitions.handle, 0, 3, (TOPIC_ALTER,)),
            _serve(38, create_delegation_token.handle, 1, 3, (USER_CREATE_TOKENS,)),
            _serve(39, renew_delegation_token.handle, 1, 2, NO_PERMISSIONS),
            _serve(40, expire_delegation_token.handle, 1, 2, NO_PERMISSIONS),
            _serve(41, describe_delegation_token.handle, 1, 3, (DELEGATION_TOKEN_DESCRIBE, USER_DESCRIBE_TOKENS)),
            _serve(42, delete_groups.handle, 0, 2, (GROUP_DELETE,)),
            _serve(43, elect_leaders.handle, 0, 2, (CLUSTER_ALTER,)),
            _serve(44, incremental_alter_configs.handle, 0, 1, _CONFIG_CHANGES),
            _serve(45, alter_partition_reassignments.handle, 0, 1, (CLUSTER_ALTER,)),
            _serve(46, list_partition_reassignments.handle, 0, 0, (CLUSTER_DESCRIBE,)),
            _serve(47, offset_delete.handle, 0, 0, (GROUP_DELETE, TOPIC_READ)),
            _serve(50, describe_user_scram_credentials.handle, 0, 0, (CLUSTER_DESCRIBE,)),
            _serve(51, alter_user_scram_credentials.handle, 0, 0, (CLUSTER_ALTER,)),
            _serve(48, describe_client_quotas.handle, 0, 1, (CLUSTER_DESCRIBE_CONFIGS,)),
            _serve(49, alter_client_quotas.handle, 0, 1, (CLUSTER_ALTER_CONFIGS,)),
            _serve(55, describe_quorum.handle, 0, 2, (CLUSTER_DESCRIBE,)),
            _serve(57, update_features.handle, 0, 2, (CLUSTER_ALTER,)),
            _serve(60, describe_cluster.handle, 0, 2, NO_PERMISSIONS),
            _serve(61, describe_producers.handle, 0, 0, (TOPIC_READ,)),
            _serve(64, unregister_broker.handle, 0, 0, (CLUSTER_ALTER,)),
            _serve(65, describe_transactions.handle, 0, 0, (TRANSACTIONAL_ID_DESCRIBE, TOPIC_DESCRIBE)),
            _serve(66, list_transactions.handle, 0, 2, (TRANSACTIONAL_ID_DESCRIBE,)),
            _serve(78, share_fetch.handle, 1, 2, (GROUP_READ, TOPIC_READ)),
            _serve(79, share_acknowledge.handle, 1, 2, (GROUP_READ, TOPIC_READ)),
            _serve(68, consumer_group_heartbeat.handle, 0, 1, (GROUP_READ, TOPIC_DESCRIBE)),
            _serve(69, consumer_group_describe.handle, 0, 1, (GROUP_DESCRIBE, TOPIC_DESCRIBE)),
            _serve(76, share_group_heartbeat.handle, 1, 1, (GROUP_READ, TOPIC_DESCRIBE)),
            _serve(77, share_group_describe.handle, 1, 1, (GROUP_DESCRIBE, TOPIC_DESCRIBE)),
            _serve(90, describe_share_group_offsets.handle, 0, 1, (GROUP_DESCRIBE, TOPIC_DESCRIBE)),
            _serve(91, alter_share_group_offsets.handle, 0, 0, (GROUP_READ, TOPIC_READ)),
            _serve(92, delete_share_group_offsets.handle, 0, 0, (GROUP_DELETE, TOPIC_READ)),
            _serve(83, initialize_share_group_state.handle, 0, 0, (CLUSTER_ACTION,)),
            _serve(84, read_share_group_state.handle, 0, 0, (CLUSTER_ACTION,)),
            _serve(85, write_share_group_state.handle, 0, 1, (CLUSTER_ACTION,)),
            _serve(86, delete_share_group_state.handle, 0, 0, (CLUSTER_ACTION,)),
            _serve(87, read_share_group_state_summary.handle, 0, 1, (CLUSTER_ACTION,)),
            _serve(71, get_telemetry_subscriptions.handle, 0, 0, NO_PERMISSIONS),
            _serve(72, push_telemetry.handle, 0, 0, NO_PERMISSIONS),
            _serve(74, list_config_resources.handle, 0, 1, (CLUSTER_DESCRIBE_CONFIGS,)),
            _serve(75, describe_topic_partitions.handle, 0, 0, (TOPIC_DESCRIBE,)),
        )
    }
)
ADVERTISED = tuple(
    ApiVersionsResponseApiVersion(
        api_key=endpoint.api_key, min_version=endpoint.advertised_min_version, max_version=endpoint.max_version
    )
    for endpoint in ENDPOINTS.values()
)
