"""What keeps one client, or one large shard, from taking everything."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.groups.classic import joining, membership
from flowstone.coordinator.groups.config import EXPIRY_OFFSETS_PER_TICK, EXPIRY_PAUSE_MS, GroupConfig
from flowstone.coordinator.groups.messages import CommitRequest, JoinRequest, SyncRequest
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH, OffsetRemoved
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.harness import Coordinator

JOIN = JoinRequest("g", 10_000, 60_000, "consumer", (("range", b""),))


def test_member_ids_are_handed_out_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PENDING_MEMBERS_MAX", 3)
    replies: list[Any] = []
    coordinator = Coordinator(GroupConfig(), lambda token, response: replies.append(response.error_code))
    for _ in range(4):
        coordinator.take(coordinator.shard.join(coordinator.now_ms, None, JOIN))
    assert replies == [ErrorCode.MEMBER_ID_REQUIRED] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    coordinator.advance(10_000)
    coordinator.take(coordinator.shard.join(coordinator.now_ms, None, JOIN))
    assert replies[-1] is ErrorCode.MEMBER_ID_REQUIRED


def test_a_group_too_large_to_store_is_told_so_and_leaves_the_shard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "GROUP_BYTES_MAX", 1000)
    replies: list[Any] = []
    coordinator = Coordinator(GroupConfig(), lambda token, response: replies.append(response))
    coordinator.take(coordinator.shard.join(coordinator.now_ms, None, JOIN._replace(member_id_required=False)))
    coordinator.advance(10_000)
    joined = replies[-1]
    assert joined.error_code is ErrorCode.NONE
    too_much = ((joined.member_id, b"x" * 2000),)
    request = SyncRequest("g", joined.member_id, joined.generation_id, assignments=too_much)
    coordinator.take(coordinator.shard.sync(coordinator.now_ms, None, request))
    assert replies[-1].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert coordinator.log == []


def test_old_offsets_are_removed_in_slices() -> None:
    coordinator = Coordinator(GroupConfig(offsets_retention_ms=1), lambda token, response: None)
    for number in range(4):
        offsets = tuple(("t", partition, 1, NO_LEADER_EPOCH, None) for partition in range(EXPIRY_OFFSETS_PER_TICK // 2))
        request = CommitRequest(f"g{number}", offsets)
        coordinator.take(coordinator.shard.commit_offsets(coordinator.now_ms, None, request))
    coordinator.advance(coordinator.config.offsets_retention_check_interval_ms - 1)
    for is_last in (False, True):
        deadline_ms = coordinator.shard.next_deadline()
        assert deadline_ms is not None
        coordinator.now_ms = deadline_ms
        effects = coordinator.shard.tick(deadline_ms)
        assert sum(isinstance(record, OffsetRemoved) for record in effects.records) == EXPIRY_OFFSETS_PER_TICK
        coordinator.take(effects)
        pause_ms = coordinator.config.offsets_retention_check_interval_ms if is_last else EXPIRY_PAUSE_MS
        assert coordinator.shard.next_deadline() == deadline_ms + pause_ms
