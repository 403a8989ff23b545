"""The operations and resource types that ACLs name, with Kafka's numbers.

Responses carry sets of operations as bits. Without an authorizer everybody may do everything: a resource's set is then
all the operations it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

# The value in a response if the request did not ask for operations: Kafka's Int.MinValue.
NOT_ASKED = -(2**31)


class AclOperation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


def _bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS = (
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
TRANSACTIONAL_ID_OPERATIONS = (AclOperation.WRITE, AclOperation.DESCRIBE)
USER_OPERATIONS = (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS)
ALL_TOPIC_OPERATIONS = _bits(TOPIC_OPERATIONS)
ALL_CLUSTER_OPERATIONS = _bits(CLUSTER_OPERATIONS)
ALL_GROUP_OPERATIONS = _bits(GROUP_OPERATIONS)
