"""Changes of the state of whole share groups: reset and deletion of offsets, for which two coordinators are asked.

The group coordinator checks the group and notes what begins, the share coordinator changes the state, and the group
coordinator notes what succeeded: see `coordinator.groups.share.offsets`. Every function runs on the broker that
coordinates the group. Raises ApiError for the whole group: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, or that the group's
coordinator is not here or loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowstone.broker.coordinators.group_coordinator import GroupCall, GroupCoordinator
from flowstone.broker.coordinators.share.share_states import ShareStates
from flowstone.coordinator.groups.share.offsets import Begun
from flowstone.coordinator.groups.share_records import TopicPartitions
from flowstone.coordinator.share.messages import InitialState, StateResult, StateSummary
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode


class GroupStates:
    def __init__(self, groups: GroupCoordinator, states: ShareStates) -> None:
        self._groups, self._states = groups, states

    async def reset(self, group_id: str, offsets: Mapping[str, Mapping[int, int]]) -> Mapping[ShareKey, StateResult]:
        """Set the start offsets of existing partitions, by topic and index. A group that does not exist is made."""
        topics = {name: tuple(sorted(partitions)) for name, partitions in offsets.items()}
        begun = await self._begin(
            group_id, lambda shard, now_ms, token: shard.begin_share_reset(now_ms, token, group_id, topics)
        )
        by_id = dict(zip(begun.partitions, (offsets[name] for name in topics), strict=True))
        results = await self._states.initialize(
            [
                InitialState(ShareKey(group_id, topic_id, index), begun.state_epoch, by_id[topic_id][index])
                for topic_id, indexes in begun.partitions.items()
                for index in indexes
            ]
        )
        done = _succeeded(results)
        await self._groups.request(
            group_id, lambda shard, now_ms, token: shard.end_share_reset(now_ms, token, group_id, done)
        )
        return results

    async def delete(self, group_id: str, topic_ids: frozenset[bytes] | None) -> Mapping[bytes, StateResult]:
        """Delete the state of these topics, or of all for None; return a result for each topic that had any."""
        begun = await self._begin(
            group_id, lambda shard, now_ms, token: shard.begin_share_deletion(now_ms, token, group_id, topic_ids)
        )
        keys = _keys(group_id, begun.partitions)
        results: dict[bytes, StateResult] = dict.fromkeys(begun.partitions, StateResult())
        for key, result in (await self._states.delete(keys)).items():
            if result.error_code is not ErrorCode.NONE:
                results[key.topic_id] = result
        done = frozenset(each for each, result in results.items() if result.error_code is ErrorCode.NONE)
        await self._groups.request(
            group_id, lambda shard, now_ms, token: shard.end_share_deletion(now_ms, token, group_id, done)
        )
        return results

    async def summaries(self, group_id: str, partitions: TopicPartitions | None) -> Mapping[ShareKey, StateSummary]:
        """Return where the group is in these partitions, or for None in all that have state."""
        known = await self._begin(
            group_id, lambda shard, now_ms, token: shard.describe_share_offsets(now_ms, token, group_id)
        )
        keys = list(_keys(group_id, known.partitions if partitions is None else partitions))
        have_state = {topic_id: frozenset(indexes) for topic_id, indexes in known.partitions.items()}
        stored = [key for key in keys if key.partition in have_state.get(key.topic_id, ())]
        found = await self._states.summarize(stored)
        return {key: found.get(key, StateSummary()) for key in keys}

    async def _begin(self, group_id: str, call: GroupCall) -> Begun:
        outcome: Any = await self._groups.request(group_id, call)
        if isinstance(outcome, ApiError):
            raise outcome
        assert isinstance(outcome, Begun)
        return outcome


def _keys(group_id: str, partitions: TopicPartitions) -> Iterable[ShareKey]:
    return (ShareKey(group_id, topic_id, index) for topic_id, indexes in partitions.items() for index in indexes)


def _succeeded(results: Mapping[ShareKey, StateResult]) -> TopicPartitions:
    done: dict[bytes, list[int]] = {}
    for key, result in results.items():
        if result.error_code is ErrorCode.NONE:
            done.setdefault(key.topic_id, []).append(key.partition)
    return {topic_id: tuple(indexes) for topic_id, indexes in done.items()}
