"""The guard of each API.

An API that is not in the table gets its guard from the permissions that the registry declares, if each of them is for
the cluster, or for the one group or transactional id that the request names. Otherwise every request of it is refused:
what is forgotten here is closed, not open.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from flowstone.broker.authorization.entries import Entries, ProducedTopics
from flowstone.broker.authorization.guards import Guard
from flowstone.broker.authorization.share_groups import (
    DescribedMembers,
    DescribedShareOffsets,
    SharedTopics,
    SubscribingMembers,
)
from flowstone.broker.authorization.special import (
    ALTERED_CONFIGS,
    DESCRIBED_CONFIGS,
    AddedPartitions,
    CoordinatorKeys,
    CreatedTopics,
    DeletedTopics,
    DescribedGroups,
    DescribedTransactions,
    FetchedOffsets,
    NewProducers,
    always,
    hide_groups,
    hide_transactions,
    may_not_list_all_groups,
)
from flowstone.broker.authorization.whole_requests import Check, Completed, EmptyAnswer, NothingAllowed, OneOf, Whole
from flowstone.broker.requests.permissions import (
    CLUSTER_ACTION,
    CLUSTER_ALTER,
    CLUSTER_CREATE,
    CLUSTER_DESCRIBE,
    DELEGATION_TOKEN_DESCRIBE,
    GROUP_DELETE,
    GROUP_DESCRIBE,
    GROUP_READ,
    TOPIC_ALTER,
    TOPIC_CREATE,
    TOPIC_DELETE,
    TOPIC_DESCRIBE,
    TOPIC_READ,
    TOPIC_WRITE,
    TRANSACTIONAL_ID_DESCRIBE,
    TRANSACTIONAL_ID_WRITE,
    USER_CREATE_TOKENS,
    USER_DESCRIBE_TOKENS,
    Permission,
)
from flowstone.cluster.decisions.acl_operations import ResourceType
from flowstone.wire.apis import APIS
from flowstone.wire.messages import (
    ShareAcknowledgeRequestPartition,
    ShareAcknowledgeRequestTopic,
    ShareFetchRequestPartition,
    ShareFetchRequestTopic,
)

logger = logging.getLogger(__name__)

GUARDS: Mapping[str, Guard] = MappingProxyType(
    {
        "Produce": ProducedTopics(
            "topic_data", TOPIC_WRITE, whole=(Check(TRANSACTIONAL_ID_WRITE, "transactional_id"),)
        ),
        "ListOffsets": Entries("topics", TOPIC_DESCRIBE),
        "OffsetCommit": Entries("topics", TOPIC_READ, whole=(Check(GROUP_READ, "group_id"),)),
        "OffsetFetch": FetchedOffsets(),
        "FindCoordinator": CoordinatorKeys(),
        "DescribeGroups": DescribedGroups(),
        "ListGroups": Completed(
            CLUSTER_DESCRIBE, GROUP_DESCRIBE, hides_if=may_not_list_all_groups, complete=hide_groups
        ),
        "CreateTopics": CreatedTopics(TOPIC_CREATE, CLUSTER_CREATE),
        "DeleteTopics": DeletedTopics(),
        "DeleteRecords": Entries("topics", TOPIC_DELETE),
        "InitProducerId": NewProducers(),
        "OffsetForLeaderEpoch": Entries("topics", TOPIC_DESCRIBE, name="topic", unless=CLUSTER_ACTION),
        "AddPartitionsToTxn": AddedPartitions(),
        "AddOffsetsToTxn": Whole(Check(TRANSACTIONAL_ID_WRITE, "transactional_id"), Check(GROUP_READ, "group_id")),
        "WriteTxnMarkers": OneOf(CLUSTER_ACTION, CLUSTER_ALTER),
        "TxnOffsetCommit": Entries(
            "topics",
            TOPIC_READ,
            whole=(Check(TRANSACTIONAL_ID_WRITE, "transactional_id"), Check(GROUP_READ, "group_id")),
        ),
        "DescribeConfigs": DESCRIBED_CONFIGS,
        "AlterConfigs": ALTERED_CONFIGS,
        "IncrementalAlterConfigs": ALTERED_CONFIGS,
        "DescribeLogDirs": EmptyAnswer(CLUSTER_DESCRIBE),
        "CreatePartitions": Entries("topics", TOPIC_ALTER),
        "DeleteGroups": Entries("groups_names", GROUP_DELETE, name=None),
        "OffsetDelete": Entries("topics", TOPIC_READ, whole=(Check(GROUP_DELETE, "group_id"),)),
        "DescribeProducers": Entries("topics", TOPIC_READ),
        "DescribeTransactions": DescribedTransactions(),
        "ListTransactions": Completed(TRANSACTIONAL_ID_DESCRIBE, hides_if=always, complete=hide_transactions),
        "ConsumerGroupHeartbeat": SubscribingMembers(),
        "ConsumerGroupDescribe": DescribedMembers(),
        "ShareGroupHeartbeat": SubscribingMembers(),
        "ShareGroupDescribe": DescribedMembers(),
        "ShareFetch": SharedTopics(ShareFetchRequestTopic, ShareFetchRequestPartition),
        "ShareAcknowledge": SharedTopics(ShareAcknowledgeRequestTopic, ShareAcknowledgeRequestPartition),
        "DescribeShareGroupOffsets": DescribedShareOffsets(),
        "AlterShareGroupOffsets": Entries(
            "topics", TOPIC_READ, name="topic_name", whole=(Check(GROUP_READ, "group_id"),)
        ),
        "DeleteShareGroupOffsets": Entries(
            "topics", TOPIC_READ, name="topic_name", whole=(Check(GROUP_DELETE, "group_id"),)
        ),
    }
)
# APIs whose handlers check permissions themselves, because what they need shows only while they run.
CHECKED_BY_HANDLERS: Mapping[str, frozenset[Permission]] = MappingProxyType(
    {
        "Fetch": frozenset((TOPIC_READ, CLUSTER_ACTION)),
        "Metadata": frozenset((TOPIC_DESCRIBE, TOPIC_CREATE, CLUSTER_CREATE)),
        "DescribeTopicPartitions": frozenset((TOPIC_DESCRIBE,)),
        "CreateDelegationToken": frozenset((USER_CREATE_TOKENS,)),
        "DescribeDelegationToken": frozenset((DELEGATION_TOKEN_DESCRIBE, USER_DESCRIBE_TOKENS)),
    }
)
# The field that names the only resource of a request.
_FIELDS = {ResourceType.GROUP: "group_id", ResourceType.TRANSACTIONAL_ID: "transactional_id"}


def guard_of(api_key: int, declared: Sequence[Permission]) -> Guard | None:
    """Return the guard of an API, given the permissions that the registry declares; None if it needs none."""
    api = APIS[api_key]
    if api.name in CHECKED_BY_HANDLERS:
        return None
    guard = GUARDS.get(api.name)
    if guard is not None or not declared:
        return guard
    derived = derive(declared, api.request.__slots__)
    if derived is None:
        logger.error("the permissions of %s are not known to authorization: all of its requests are refused", api.name)
        return NothingAllowed(declared)
    return derived


def derive(declared: Sequence[Permission], fields: Sequence[str]) -> Guard | None:
    """Return the guard for a request with these fields, or None if the permissions do not tell which it needs."""
    checks = []
    for permission in declared:
        kind = permission.resource_type
        field = _FIELDS.get(kind)
        if kind is not ResourceType.CLUSTER and (field is None or field not in fields):
            return None
        checks.append(Check(permission, field))
    return Whole(*checks)
