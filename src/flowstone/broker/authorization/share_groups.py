"""Guards of share groups (KIP-932) and consumer groups (KIP-848): their members, and the topics that those read."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from flowstone.broker.authorization.entries import Entries
from flowstone.broker.authorization.guards import Restricting, Restriction
from flowstone.broker.authorization.special import unchanged
from flowstone.broker.authorization.whole_requests import Check, access_of, refusal
from flowstone.broker.loop.time_slices import batched
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import GROUP_DESCRIBE, GROUP_READ, TOPIC_DESCRIBE, TOPIC_READ
from flowstone.broker.requests.session import ClientSession
from flowstone.broker.sharing.share_sessions import MemberKey
from flowstone.cluster.decisions.acl_operations import GROUP_OPERATIONS, ResourceType
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

# Members of share groups whose sessions were checked since the rules changed; more are checked again.
CHECKED_MEMBERS_MAX = 10_000


class SubscribingMembers:
    """Heartbeats of members that subscribe to topics: one that the client may not see refuses the whole request."""

    grows = True
    permissions = frozenset((GROUP_READ, TOPIC_DESCRIBE))

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        access, session = access_of(services), context.session
        return access.may(session, GROUP_READ, request.group_id) and all(
            access.may(session, TOPIC_DESCRIBE, name) for name in request.subscribed_topic_names or ()
        )

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        access, session = access_of(services), context.session
        Check(GROUP_READ, "group_id").require(access, session, request)
        for names in batched(request.subscribed_topic_names or ()):
            for name in names:
                if not access.check(session, TOPIC_DESCRIBE, name):
                    raise refusal(TOPIC_DESCRIBE)
            yield
        return None


class DescribedMembers(Entries):
    """Descriptions of groups with their members: one with a topic that its client may not see is refused."""

    def __init__(self) -> None:
        super().__init__("group_ids", GROUP_DESCRIBE, name=None)
        self.permissions |= {TOPIC_DESCRIBE}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return False  # only the response tells the topics

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        access, session = access_of(services), context.session
        complete = unchanged if restriction is None else restriction.complete
        tells_operations = request.include_authorized_operations

        def hide(response: Any) -> Any:
            for group in response.groups:
                if not _sees_members(access, session, group):
                    group.error_code, group.members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
                    group.error_message = (
                        "The group has described topic(s) that the client is not authorized to describe."
                    )
                elif tells_operations:
                    group.authorized_operations = access.operations(
                        session, ResourceType.GROUP, group.group_id, GROUP_OPERATIONS
                    )
            return complete(response)

        return Restriction(hide, None if restriction is None else restriction.answer)


class SharedTopics(Entries):
    """The topics of ShareFetch and ShareAcknowledge, and those that the member's session has from earlier requests.

    The handler sees the request even if all of its topics are refused, because the session counts requests. A session
    is checked again after the rules have changed; topics that may not be read any more are taken from it.
    """

    def __init__(self, topic: type[Any], partition: type[Any]) -> None:
        """Guard requests whose topics and partitions are of these classes."""
        super().__init__("topics", TOPIC_READ, whole=(Check(GROUP_READ, "group_id"),))
        self._is_simple = False  # the topics have ids and no names
        self._topic, self._partition = topic, partition

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        if not super().allows(services, context, request):
            return False
        decisions = access_of(services).decisions_of(context.session)
        return MemberKey(request.group_id, request.member_id) in decisions.checked_members

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        lost = yield from self._take_lost(services, context, request)
        if restriction is None and not lost:
            return None
        complete = unchanged if restriction is None else restriction.complete

        def tell(response: Any) -> Any:
            response.responses = [*response.responses, *lost]
            return complete(response)

        return Restriction(tell)

    def _take_lost(self, services: Services, context: RequestContext, request: Any) -> Generator[None, None, list[Any]]:
        """Take the topics from the member's session that it may not read any more; return their refusals."""
        key = MemberKey(request.group_id, request.member_id)
        access, session = access_of(services), services.sharing.sessions.find(key)
        lost: dict[bytes, list[Any]] = {}
        for some in batched(tuple(session.places) if session is not None else ()):
            for place in some:
                topic = services.metadata.image.topics_by_id.get(place.topic_id)
                if topic is None or access.check(context.session, TOPIC_READ, topic.name):
                    continue
                if session is not None:
                    session.places.pop(place, None)
                services.sharing.forget(key, place)
                lost.setdefault(place.topic_id, []).append(self._partition(partition_index=place.partition))
            yield
        checked = access.decisions_of(context.session).checked_members
        if len(checked) >= CHECKED_MEMBERS_MAX:
            checked.clear()
        checked.add(key)
        topics = [self._topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in lost.items()]
        added: dict[str, list[Any]] = {}
        yield from self._add_refused(context, request, topics, refusal(TOPIC_READ), added)
        return added.get("responses", [])


class DescribedShareOffsets(Entries):
    """The offsets of share groups: of each group the topics that the client may see; others it names are refused."""

    def __init__(self) -> None:
        super().__init__("groups", GROUP_DESCRIBE, name="group_id")
        self.permissions |= {TOPIC_DESCRIBE}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return False  # only the response tells all topics of a group

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        restriction = yield from super().restrict(services, context, request)
        access, session = access_of(services), context.session
        complete = unchanged if restriction is None else restriction.complete
        refused: dict[str, list[DescribeShareGroupOffsetsResponseTopic]] = {}
        for group in request.groups:
            if group.topics is not None:
                told, named = refused.setdefault(group.group_id, []), group.topics
                group.topics = [each for each in named if access.check(session, TOPIC_DESCRIBE, each.topic_name)]
                told += (_refused(each) for each in named if not access.may(session, TOPIC_DESCRIBE, each.topic_name))
            yield

        def hide(response: Any) -> Any:
            for group in response.groups:
                seen = [each for each in group.topics if access.may(session, TOPIC_DESCRIBE, each.topic_name)]
                group.topics = [*seen, *refused.get(group.group_id, ())]
            return complete(response)

        return Restriction(hide, None if restriction is None else restriction.answer)


def _refused(topic: Any) -> DescribeShareGroupOffsetsResponseTopic:
    partitions = [
        DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=-1, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        for index in topic.partitions
    ]
    return DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, partitions=partitions)


def _sees_members(access: Access, session: ClientSession, group: Any) -> bool:
    return all(
        access.may(session, TOPIC_DESCRIBE, name)
        for member in group.members
        for name in (
            *member.subscribed_topic_names,
            *(each.topic_name for assignment in _assignments(member) for each in assignment.topic_partitions),
        )
    )


def _assignments(member: Any) -> tuple[Any, ...]:
    """Return the assignment of a member, and of a consumer group's also the one that it shall have."""
    target = getattr(member, "target_assignment", None)
    return (member.assignment,) if target is None else (member.assignment, target)
