"""The permissions that requests need: an operation on a type of resource, as Kafka's access rules name them.

Each API declares in the registry which of these authorization will check. The request names the resources, and the API
defines which of several permissions suffices: records are appended with WRITE on their topic, and in a
transaction with WRITE on its transactional id too; a topic is created with CREATE on itself or on the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType


# Compared by identity: decisions are cached by permission, and the hash of two enumeration members takes longer than
# the rest of a lookup.
@dataclass(frozen=True, slots=True, eq=False)
class Permission:
    resource_type: ResourceType
    operation: AclOperation


# Declared by an API that needs no permission, not even authentication.
NO_PERMISSIONS: tuple[Permission, ...] = ()

TOPIC_READ = Permission(ResourceType.TOPIC, AclOperation.READ)
TOPIC_WRITE = Permission(ResourceType.TOPIC, AclOperation.WRITE)
TOPIC_CREATE = Permission(ResourceType.TOPIC, AclOperation.CREATE)
TOPIC_DELETE = Permission(ResourceType.TOPIC, AclOperation.DELETE)
TOPIC_ALTER = Permission(ResourceType.TOPIC, AclOperation.ALTER)
TOPIC_DESCRIBE = Permission(ResourceType.TOPIC, AclOperation.DESCRIBE)
TOPIC_DESCRIBE_CONFIGS = Permission(ResourceType.TOPIC, AclOperation.DESCRIBE_CONFIGS)
TOPIC_ALTER_CONFIGS = Permission(ResourceType.TOPIC, AclOperation.ALTER_CONFIGS)
GROUP_READ = Permission(ResourceType.GROUP, AclOperation.READ)
GROUP_DELETE = Permission(ResourceType.GROUP, AclOperation.DELETE)
GROUP_DESCRIBE = Permission(ResourceType.GROUP, AclOperation.DESCRIBE)
GROUP_DESCRIBE_CONFIGS = Permission(ResourceType.GROUP, AclOperation.DESCRIBE_CONFIGS)
GROUP_ALTER_CONFIGS = Permission(ResourceType.GROUP, AclOperation.ALTER_CONFIGS)
CLUSTER_CREATE = Permission(ResourceType.CLUSTER, AclOperation.CREATE)
CLUSTER_ALTER = Permission(ResourceType.CLUSTER, AclOperation.ALTER)
CLUSTER_DESCRIBE = Permission(ResourceType.CLUSTER, AclOperation.DESCRIBE)
CLUSTER_ACTION = Permission(ResourceType.CLUSTER, AclOperation.CLUSTER_ACTION)
CLUSTER_DESCRIBE_CONFIGS = Permission(ResourceType.CLUSTER, AclOperation.DESCRIBE_CONFIGS)
CLUSTER_ALTER_CONFIGS = Permission(ResourceType.CLUSTER, AclOperation.ALTER_CONFIGS)
CLUSTER_IDEMPOTENT_WRITE = Permission(ResourceType.CLUSTER, AclOperation.IDEMPOTENT_WRITE)
TRANSACTIONAL_ID_WRITE = Permission(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE)
TRANSACTIONAL_ID_DESCRIBE = Permission(ResourceType.TRANSACTIONAL_ID, AclOperation.DESCRIBE)
DELEGATION_TOKEN_DESCRIBE = Permission(ResourceType.DELEGATION_TOKEN, AclOperation.DESCRIBE)
USER_CREATE_TOKENS = Permission(ResourceType.USER, AclOperation.CREATE_TOKENS)
USER_DESCRIBE_TOKENS = Permission(ResourceType.USER, AclOperation.DESCRIBE_TOKENS)
