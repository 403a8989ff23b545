"""Reader of consumer groups from the coordinator of a broker in this process, with waiting but without polling.

A group that becomes stable stores its assignment, so waiting means watching the end of its partition of
`__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.embedded.change_signal import ChangeSignal
from flowstone.replication.readers import Reader
from flowstone.types import TopicPartition

LOAD_WAIT_S = 10.0


class GroupReader:
    """Reader of groups; lives on the broker's event loop."""

    def __init__(self, services: Services, survey: GroupSurvey) -> None:
        self._services, self._survey = services, survey
        self._waiting: set[ChangeSignal] = set()
        services.metadata.on_change(self._changed)

    async def read(self) -> dict[str, GroupStatus]:
        return {group.group_id: group for group in await self._survey.all_groups()}

    async def wait_stable(self, group_id: str, members: int | None) -> GroupStatus:
        """Wait until the group is stable, has that many members, and all partitions of its topics have owners.

        The last condition is for cooperative members, whose rebalance has two steps: in between, some partitions have
        no owner.
        """
        signal = ChangeSignal()
        self._waiting.add(signal)
        watched = None
        await self._services.groups.wait_loaded(LOAD_WAIT_S)
        try:
            while True:
                where = self._services.groups.partition_of(group_id)
                partition = self._services.partitions.find(where) if where is not None else None
                if partition is not None:
                    watched = partition
                    watched.local.watchers(Reader.UNCOMMITTED).watch(signal)
                group = await self._survey.group(group_id)
                if group is not None and self._is_settled(group, members):
                    return group
                await signal.changed()
        finally:
            self._waiting.discard(signal)
            if watched is not None:
                watched.local.watchers(Reader.UNCOMMITTED).unwatch(signal)

    async def describe(self, group_id: str) -> str:
        """Return a description of the group's state, for the message of a timeout."""
        group = await self._survey.group(group_id)
        if group is None:
            return "there is no such group"
        return f"it is {group.state}, with {len(group.members)} members"

    def _is_settled(self, group: GroupStatus, members: int | None) -> bool:
        if not group.is_stable or members not in (None, len(group.members)):
            return False
        owned = {partition for member in group.members for partition in member.partitions}
        topics = self._services.metadata.image.topics
        return all(
            TopicPartition(name, index) in owned
            for name in group.topics
            if name in topics
            for index in range(len(topics[name].partitions))
        )

    def _changed(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for signal in self._waiting:
            signal.interrupted()
