"""The events of the page `/events`: changes of the cluster's metadata, and of groups and their lag.

Follows the metadata as any listener does, and groups after each survey. Work is done only while there are
subscribers. A change of more than `RECORDS_PER_CHANGE_MAX` records is one event `reset`, so that no change
holds the event loop for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flowstone.broker.http.page import Publish, encode_event
from flowstone.broker.lag.group_status import GroupStatus
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.records import MetadataRecord

# Records of one change of the metadata; a larger change is published as `reset`.
RECORDS_PER_CHANGE_MAX = 500
# Groups that are followed, the first ones by name; the others are neither published nor counted.
GROUPS_FOLLOWED_MAX = 2000
# Changed groups in one event `groups`, by name; the others are counted.
GROUPS_PER_EVENT_MAX = 200

Document = dict[str, Any]


class Event(NamedTuple):
    name: str
    document: Document


class EventFeed:
    def __init__(self, services: Services, survey: GroupSurvey) -> None:
        self._services, self._survey = services, survey
        self._subscribers: list[Publish] = []
        self._is_listening = False
        # The groups as last published.
        self._groups: Mapping[str, Document] = {}

    @contextmanager
    def subscribe(self, publish: Publish) -> Iterator[None]:
        """Publish events, the first of them `state`, until the context is left."""
        if not self._is_listening:
            self._is_listening = True
            self._services.metadata.on_change(self._metadata_changed)
            self._survey.on_survey(self._groups_surveyed)
        if not self._subscribers:
            self._groups = _group_documents(self._survey.latest)
        publish(encode_event("state", self._state()))
        self._subscribers.append(publish)
        try:
            yield
        finally:
            self._subscribers.remove(publish)

    def _state(self) -> Document:
        image = self._services.metadata.image
        return {
            "cluster_id": self._services.logs.identity.cluster_id,
            "broker": self._services.config.node_id,
            "metadata_version": image.version,
            "controller": image.controller_id,
        }

    def _metadata_changed(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        if not self._subscribers:
            return
        if len(records) > RECORDS_PER_CHANGE_MAX:
            self._publish(Event("reset", {"reason": "the metadata has changed in many places at once"}))
            return
        for event in metadata_events(before, after, records):
            self._publish(event)

    def _groups_surveyed(self, found: Sequence[GroupStatus]) -> None:
        if not self._subscribers:
            return
        before, self._groups = self._groups, _group_documents(found)
        changed = [document for name, document in self._groups.items() if before.get(name) != document]
        gone = [name for name in before if name not in self._groups]
        if changed or gone:
            told, gone_told = changed[:GROUPS_PER_EVENT_MAX], gone[:GROUPS_PER_EVENT_MAX]
            left_out = len(changed) + len(gone) - len(told) - len(gone_told)
            self._publish(Event("groups", {"changed": told, "gone": gone_told, "left_out": left_out}))

    def _publish(self, event: Event) -> None:
        encoded = encode_event(*event)
        for publish in self._subscribers:
            publish(encoded)


def metadata_events(before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> Iterator[Event]:
    """Yield an event for each visible change between two images, given the records that made it. Pure."""
    if after.brokers is not before.brokers:
        yield from _broker_events(before, after)
    if after.controller_id != before.controller_id:
        yield Event("controller_changed", {"controller": after.controller_id})
    topic_ids: dict[bytes, None] = dict.fromkeys(record.topic_id for record in records if hasattr(record, "topic_id"))
    for topic_id in topic_ids:
        yield from _topic_events(before.topics_by_id.get(topic_id), after.topics_by_id.get(topic_id))


def _broker_events(before: ClusterImage, after: ClusterImage) -> Iterator[Event]:
    for node_id in sorted(before.brokers.keys() | after.brokers.keys()):
        old, new = before.brokers.get(node_id), after.brokers.get(node_id)
        if old != new:
            state = "unregistered" if new is None else "fenced" if new.is_fenced else "online"
            yield Event("broker_changed", {"broker": node_id, "state": state})


def _topic_events(before: TopicImage | None, after: TopicImage | None) -> Iterator[Event]:
    if before is None or after is None:
        if after is not None:
            yield Event("topic_created", {"topic": after.name, "partitions": len(after.partitions)})
        elif before is not None:
            yield Event("topic_deleted", {"topic": before.name})
        return
    if len(after.partitions) != len(before.partitions):
        yield Event("partitions_added", {"topic": after.name, "partitions": len(after.partitions)})
    if after.configs != before.configs:
        yield Event("topic_configs_changed", {"topic": after.name, "configs": dict(after.configs)})
    for partition, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=False)):
        where = {"topic": after.name, "partition": partition}
        if old is new:
            continue
        if (old.leader, old.leader_epoch) != (new.leader, new.leader_epoch):
            yield Event("leader_changed", {**where, "leader": new.leader, "leader_epoch": new.leader_epoch})
        if old.isr != new.isr or old.replicas != new.replicas:
            yield Event("replicas_changed", {**where, "replicas": list(new.replicas), "in_sync": list(new.isr)})


def _group_documents(found: Sequence[GroupStatus]) -> dict[str, Document]:
    return {
        group.group_id: {"group": group.group_id, "state": group.state, "members": len(group.members), "lag": group.lag}
        for group in found[:GROUPS_FOLLOWED_MAX]
    }
