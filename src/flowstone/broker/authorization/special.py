"""Guards of APIs that need more than lists of resources: what a response shows depends on the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowstone.broker.authorization.entries import Entries, Needs
from flowstone.broker.authorization.guards import Restricting, Restriction
from flowstone.broker.authorization.whole_requests import Check, OneOf, access_of
from flowstone.broker.loop.time_slices import batched
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import (
    CLUSTER_ACTION,
    CLUSTER_ALTER_CONFIGS,
    CLUSTER_DESCRIBE,
    CLUSTER_DESCRIBE_CONFIGS,
    CLUSTER_IDEMPOTENT_WRITE,
    GROUP_ALTER_CONFIGS,
    GROUP_DESCRIBE,
    GROUP_DESCRIBE_CONFIGS,
    TOPIC_ALTER_CONFIGS,
    TOPIC_DELETE,
    TOPIC_DESCRIBE,
    TOPIC_DESCRIBE_CONFIGS,
    TOPIC_WRITE,
    TRANSACTIONAL_ID_DESCRIBE,
    TRANSACTIONAL_ID_WRITE,
    Permission,
)
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.decisions.acl_operations import GROUP_OPERATIONS, ResourceType
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponsePartition,
    AddPartitionsToTxnResponseTopic,
)

_BATCHED_SINCE_VERSION = 4
_NO_COUNT = -1
# The types of resources that settings belong to, with the protocol's numbers.
_TOPIC_CONFIGS, _GROUP_CONFIGS = 2, 32
GROUP_KEYS, TRANSACTION_KEYS = 0, 1


class NewProducers:
    """Guard of InitProducerId: requires permission for the transactional id, or without one, to write to any topic."""

    grows = False
    permissions = frozenset((TRANSACTIONAL_ID_WRITE, CLUSTER_IDEMPOTENT_WRITE, TOPIC_WRITE))

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        access, session = access_of(services), context.session
        if request.transactional_id is not None:
            return access.may(session, TRANSACTIONAL_ID_WRITE, request.transactional_id)
        return access.may(session, CLUSTER_IDEMPOTENT_WRITE) or access.may_on_any(session, TOPIC_WRITE)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        if request.transactional_id is not None:
            Check(TRANSACTIONAL_ID_WRITE, "transactional_id").require(access_of(services), context.session, request)
        else:
            Check(CLUSTER_IDEMPOTENT_WRITE).require(access_of(services), context.session, request)
        return None


class AddedPartitions(Entries):
    """Guard of AddPartitionsToTxn: from clients (up to version 3), refused as a whole; later versions from brokers."""

    def __init__(self) -> None:
        super().__init__(
            "v3_and_below_topics",
            TOPIC_WRITE,
            whole=(Check(TRANSACTIONAL_ID_WRITE, "v3_and_below_transactional_id"),),
        )
        self._brokers = OneOf(CLUSTER_ACTION)
        self.permissions |= {CLUSTER_ACTION}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        if context.api_version >= _BATCHED_SINCE_VERSION:
            return self._brokers.allows(services, context, request)
        return super().allows(services, context, request)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        if context.api_version >= _BATCHED_SINCE_VERSION:
            if not self._brokers.allows(services, context, request):
                yield from self._brokers.restrict(services, context, request)
            return None
        topics, access = request.v3_and_below_topics, access_of(services)
        may_use_id = all(check.is_met(access, context.session, request) for check in self._whole)
        restriction = yield from super().restrict(services, context, request)
        if restriction is None or not may_use_id:
            return restriction
        allowed = {id(topic) for topic in request.v3_and_below_topics} if restriction.answer is None else ()
        results: list[AddPartitionsToTxnResponseTopic] = []
        for topic in topics:
            code = ErrorCode.OPERATION_NOT_ATTEMPTED if id(topic) in allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            partitions: list[AddPartitionsToTxnResponsePartition] = []
            for some in batched(topic.partitions):
                partitions += (
                    AddPartitionsToTxnResponsePartition(partition_index=index, partition_error_code=code)
                    for index in some
                )
                yield
            results.append(AddPartitionsToTxnResponseTopic(name=topic.name, results_by_partition=partitions))
        answer = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        return Restriction(unchanged, answer)


class CoordinatorKeys(Entries):
    """Guard of FindCoordinator since version 4: one key for each coordinator."""

    def __init__(self) -> None:
        super().__init__("coordinator_keys", name=None)
        self.permissions = frozenset((GROUP_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE, CLUSTER_ACTION))

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        if context.api_version >= _BATCHED_SINCE_VERSION:
            return super().allows(services, context, request)
        return self._may(access_of(services), context.session, services.metadata.image, request, request.key)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        if context.api_version >= _BATCHED_SINCE_VERSION:
            return (yield from super().restrict(services, context, request))
        access, session = access_of(services), context.session
        error = self._error(access, session, services.metadata.image, request, request.key)
        if error is not None:
            raise error
        return None

    def needs(self, image: ClusterImage, request: Any, entry: Any) -> Needs:
        if request.key_type == GROUP_KEYS:
            return (GROUP_DESCRIBE,), entry
        if request.key_type == TRANSACTION_KEYS:
            return (TRANSACTIONAL_ID_DESCRIBE,), entry
        return (CLUSTER_ACTION,), CLUSTER_NAME


class ConfiguredResources(Entries):
    """DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: topics, groups, and else the cluster."""

    def __init__(self, topic: Permission, group: Permission, cluster: Permission) -> None:
        super().__init__("resources", topic, group, cluster, name="resource_name")
        self._by_type = {_TOPIC_CONFIGS: topic, _GROUP_CONFIGS: group}
        self._cluster = cluster

    def needs(self, image: ClusterImage, request: Any, entry: Any) -> Needs:
        permission = self._by_type.get(entry.resource_type, self._cluster)
        name = CLUSTER_NAME if permission is self._cluster else entry.resource_name
        return (permission,), name


DESCRIBED_CONFIGS = ConfiguredResources(TOPIC_DESCRIBE_CONFIGS, GROUP_DESCRIBE_CONFIGS, CLUSTER_DESCRIBE_CONFIGS)
ALTERED_CONFIGS = ConfiguredResources(TOPIC_ALTER_CONFIGS, GROUP_ALTER_CONFIGS, CLUSTER_ALTER_CONFIGS)


class DeletedTopics(Entries):
    """Guard of DeleteTopics: by name up to version 5, then by name or id. A refusal does not reveal an id's name."""

    _NAMED_UNTIL_VERSION = 5

    def __init__(self) -> None:
        super().__init__("topics", TOPIC_DESCRIBE, TOPIC_DELETE)
        self._by_name = Entries("topic_names", TOPIC_DESCRIBE, TOPIC_DELETE, name=None)

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        if context.api_version <= self._NAMED_UNTIL_VERSION:
            return self._by_name.allows(services, context, request)
        return super().allows(services, context, request)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        if context.api_version <= self._NAMED_UNTIL_VERSION:
            return (yield from self._by_name.restrict(services, context, request))
        return (yield from super().restrict(services, context, request))


class CreatedTopics(Entries):
    """Guard of CreateTopics: only clients that may describe settings see those of the new topics."""

    def __init__(self, create: Permission, create_any: Permission) -> None:
        super().__init__("topics", create, unless=create_any)
        self.permissions |= {TOPIC_DESCRIBE_CONFIGS}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        access, session = access_of(services), context.session
        sees_configs = all(access.may(session, TOPIC_DESCRIBE_CONFIGS, topic.name) for topic in request.topics)
        return sees_configs and super().allows(services, context, request)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        access, session = access_of(services), context.session
        complete = unchanged if restriction is None else restriction.complete

        def hide(response: Any) -> Any:
            for topic in response.topics:
                if not topic.error_code and not access.may(session, TOPIC_DESCRIBE_CONFIGS, topic.name):
                    topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    topic.num_partitions = topic.replication_factor = _NO_COUNT
                    topic.configs = []
            return complete(response)

        return Restriction(hide, None if restriction is None else restriction.answer)


class DescribedGroups(Entries):
    """Guard of DescribeGroups: adds the operations that the client may perform on each group."""

    def __init__(self) -> None:
        super().__init__("groups", GROUP_DESCRIBE, name=None)

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return not request.include_authorized_operations and super().allows(services, context, request)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        if not request.include_authorized_operations:
            return restriction
        access, session = access_of(services), context.session
        complete = unchanged if restriction is None else restriction.complete

        def tell(response: Any) -> Any:
            for group in response.groups:
                group.authorized_operations = access.operations(
                    session, ResourceType.GROUP, group.group_id, GROUP_OPERATIONS
                )
            return complete(response)

        return Restriction(tell, None if restriction is None else restriction.answer)


class DescribedTransactions(Entries):
    """Guard of DescribeTransactions: shows only the topics of a transaction that the client may see."""

    def __init__(self) -> None:
        super().__init__("transactional_ids", TRANSACTIONAL_ID_DESCRIBE, name=None)
        self.permissions |= {TOPIC_DESCRIBE}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return False  # only the response tells the topics

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        access, session = access_of(services), context.session
        complete = unchanged if restriction is None else restriction.complete

        def hide(response: Any) -> Any:
            for each in response.transaction_states:
                each.topics = [topic for topic in each.topics if access.may(session, TOPIC_DESCRIBE, topic.topic)]
            return complete(response)

        return Restriction(hide, None if restriction is None else restriction.answer)


class FetchedOffsets:
    """Guard of OffsetFetch: requires permissions for groups, and shows only the topics that the client may see."""

    grows = True
    permissions = frozenset((GROUP_DESCRIBE, TOPIC_DESCRIBE))
    _MANY_GROUPS_SINCE_VERSION = 8

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        groups = request.groups if context.api_version >= self._MANY_GROUPS_SINCE_VERSION else (request,)
        access, session, image = access_of(services), context.session, services.metadata.image
        for group in groups:
            if not access.may(session, GROUP_DESCRIBE, group.group_id) or group.topics is None:
                return False
            for topic in group.topics:
                name = _topic_name(image, topic)
                if name is not None and not access.may(session, TOPIC_DESCRIBE, name):
                    return False
        return True

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        if context.api_version < self._MANY_GROUPS_SINCE_VERSION:
            Check(GROUP_DESCRIBE, "group_id").require(access_of(services), context.session, request)
            if request.topics is not None:
                return (yield from Entries("topics", TOPIC_DESCRIBE).restrict(services, context, request))
            return Restriction(self._hiding(services, context, _no_groups))
        groups = Entries("groups", GROUP_DESCRIBE, name="group_id")
        restriction = yield from groups.restrict(services, context, request)
        refused: dict[str, list[Any]] = {}
        if restriction is None or restriction.answer is None:
            for group in request.groups:
                if group.topics is not None:
                    yield from self._refuse_topics(services, context, group, refused)
        complete = unchanged if restriction is None else restriction.complete
        shown = self._hiding(services, context, lambda response: response.groups)

        def finish(response: Any) -> Any:
            shown(response)
            for group in response.groups:
                if not group.error_code:
                    group.topics = [*group.topics, *refused.get(group.group_id, ())]
            return complete(response)

        return Restriction(finish, None if restriction is None else restriction.answer)

    def _refuse_topics(
        self, services: Services, context: RequestContext, group: Any, refused: dict[str, list[Any]]
    ) -> Any:
        """Take the topics from the group's part of the request that the client may not see, and refuse each."""
        from flowstone.wire.messages import OffsetFetchResponsePartition, OffsetFetchResponseTopics

        access, session, image = access_of(services), context.session, services.metadata.image
        allowed, told = [], refused.setdefault(group.group_id, [])
        for topic in group.topics:
            name = _topic_name(image, topic)
            if name is None or access.check(session, TOPIC_DESCRIBE, name):
                allowed.append(topic)
                continue
            partitions = [
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=-1,
                    metadata="",
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for index in topic.partition_indexes
            ]
            told.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
            yield
        group.topics = allowed

    def _hiding(self, services: Services, context: RequestContext, parts: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that hides topics from a client that requested all offsets of a group."""
        access, session, image = access_of(services), context.session, services.metadata.image

        def sees(topic: Any) -> bool:
            name = _topic_name(image, topic)
            return name is None or access.may(session, TOPIC_DESCRIBE, name)

        def hide(response: Any) -> Any:
            for part in parts(response) or (response,):
                part.topics = [topic for topic in part.topics if sees(topic)]
            return response

        return hide


def _topic_name(image: ClusterImage, topic: Any) -> str | None:
    if topic.name:
        name: str = topic.name
        return name
    found = image.topics_by_id.get(topic.topic_id)
    return None if found is None else found.name


def _no_groups(_: Any) -> Any:
    return ()


def unchanged(response: Any) -> Any:
    return response


def may_not_list_all_groups(access: Access, session: ClientSession, request: Any) -> bool:
    return not access.may(session, CLUSTER_DESCRIBE)


def hide_groups(access: Access, session: ClientSession, response: Any) -> Any:
    response.groups = [each for each in response.groups if access.may(session, GROUP_DESCRIBE, each.group_id)]
    return response


def always(access: Access, session: ClientSession, request: Any) -> bool:
    return True


def hide_transactions(access: Access, session: ClientSession, response: Any) -> Any:
    response.transaction_states = [
        each
        for each in response.transaction_states
        if access.may(session, TRANSACTIONAL_ID_DESCRIBE, each.transactional_id)
    ]
    return response
