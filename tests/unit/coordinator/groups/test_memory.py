"""What groups count for, and which of them are refused when all together take too much."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.config import (
    GROUP_OVERHEAD_BYTES,
    OFFSET_OVERHEAD_BYTES,
    TEXT_CHARACTER_BYTES,
    GroupConfig,
)
from flowstone.coordinator.groups.messages import (
    CommitRequest,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
)
from flowstone.coordinator.groups.pending_offsets import pending_bytes
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH
from flowstone.coordinator.groups.transactional_commits import EndTransactionRequest, TransactionalCommitRequest
from flowstone.errors import ErrorCode
from flowstone.memory_budget import MemoryBudget
from flowstone.wire.end_markers import EndMarker
from tests.unit.coordinator.groups.harness import Coordinator

KIB, MIB = 1 << 10, 1 << 20
SMALL = b"x" * 100
PRODUCER = TransactionalProducer(1, 0)
CONFIG = GroupConfig(initial_rebalance_delay_ms=0)


class Groups:
    """A coordinator with little memory, asked by members that join, sync, commit and leave."""

    def __init__(self, memory_bytes: int) -> None:
        self.replies: list[Any] = []
        self.coordinator = Coordinator(CONFIG, lambda _, response: self.replies.append(response))
        self.coordinator.budget = MemoryBudget(memory_bytes)
        self.coordinator.reload()

    @property
    def budget(self) -> MemoryBudget:
        return self.coordinator.budget

    def ask(self, method: str, request: Any) -> Any:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        self.coordinator.take(getattr(shard, method)(now_ms, None, request))
        return self.replies[-1]

    def join(self, group_id: str, metadata: bytes = SMALL, member_id: str = "") -> Any:
        protocols = (("range", metadata),)
        return self.ask(
            "join",
            JoinRequest(group_id, 10_000, 60_000, "consumer", protocols, member_id, member_id_required=False),
        )

    def form(self, group_id: str, metadata: bytes = SMALL, assignment: bytes = b"") -> Any:
        """Join as the only member and take an assignment; return the join's answer."""
        joined = self.join(group_id, metadata)
        if joined.error_code is ErrorCode.NONE:
            assert self.sync(group_id, joined, assignment).error_code is ErrorCode.NONE
        return joined

    def sync(self, group_id: str, joined: Any, assignment: bytes) -> Any:
        assignments = ((joined.member_id, assignment),)
        return self.ask("sync", SyncRequest(group_id, joined.member_id, joined.generation_id, assignments=assignments))

    def commit(self, group_id: str, count: int, metadata: str | None = None, first: int = 0) -> Any:
        offsets = [("t", first + number, 1, NO_LEADER_EPOCH, metadata) for number in range(count)]
        return self.ask("commit_offsets", CommitRequest(group_id, offsets)).errors[0]

    def leave(self, group_id: str, member_id: str) -> None:
        self.ask("leave", LeaveRequest(group_id, (LeavingMember(member_id, None, None),)))


def test_a_large_group_is_refused_while_small_ones_still_come() -> None:
    groups = Groups(10 * MIB)
    formed = [groups.form(f"large-{number}", bytes(MIB)).error_code for number in range(20)]
    count = formed.count(ErrorCode.NONE)
    assert 7 <= count <= 9
    assert formed == [ErrorCode.NONE] * count + [ErrorCode.GROUP_MAX_SIZE_REACHED] * (20 - count)
    assert all(groups.form(f"small-{number}").error_code is ErrorCode.NONE for number in range(100))
    assert groups.budget.used_bytes <= 10 * MIB


def test_members_of_a_full_coordinator_go_on_with_what_they_have() -> None:
    groups = Groups(10 * MIB)
    joined = groups.form("first", bytes(MIB))
    while groups.form(f"more-{groups.budget.used_bytes}", bytes(MIB)).error_code is ErrorCode.NONE:
        pass
    heartbeat = HeartbeatRequest("first", joined.member_id, joined.generation_id)
    assert groups.ask("heartbeat", heartbeat).error_code is ErrorCode.NONE
    again = groups.join("first", b"y" * MIB, joined.member_id)
    assert again.error_code is ErrorCode.NONE
    assert groups.sync("first", again, b"").error_code is ErrorCode.NONE
    grown = groups.join("first", b"y" * (2 * MIB), joined.member_id)
    assert grown.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_memory_is_given_back_when_members_leave_and_when_their_sessions_end() -> None:
    groups = Groups(10 * MIB)
    before = groups.budget.used_bytes
    for ends in ("leaves", "expires"):
        joined = groups.form(ends, bytes(4 * MIB))
        assert joined.error_code is ErrorCode.NONE
        assert groups.budget.used_bytes > 4 * MIB
        if ends == "leaves":
            groups.leave(ends, joined.member_id)
        groups.coordinator.advance(10_000)
        assert groups.budget.used_bytes < 20 * KIB
    groups.coordinator.advance(200_000)  # the empty groups go too
    assert groups.budget.used_bytes == before == 0


def test_an_assignment_that_is_too_large_for_what_is_left_is_refused() -> None:
    groups = Groups(4 * MIB)
    joined = groups.join("g")
    assert groups.sync("g", joined, bytes(3 * MIB)).error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert groups.budget.used_bytes < 20 * KIB


def test_offsets_count_with_their_metadata_and_are_refused_beyond_the_limit() -> None:
    groups = Groups(2 * MIB)
    assert groups.commit("g", 100, "x" * 1000) is ErrorCode.NONE
    assert groups.budget.used_bytes > 100 * 1000
    assert groups.commit("g", 100, "x" * 4000, first=1000) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert groups.commit("other", 10) is ErrorCode.NONE
    assert groups.commit("g", 100, "y" * 1000) is ErrorCode.NONE  # the same partitions again: nothing grows
    assert groups.commit("g", 100) is ErrorCode.NONE
    assert groups.budget.used_bytes < 120 * OFFSET_OVERHEAD_BYTES + 10 * KIB


def test_what_is_loaded_counts_even_beyond_the_limit_and_a_closed_shard_gives_it_back() -> None:
    groups = Groups(4 * MIB)
    assert groups.form("g", bytes(MIB)).error_code is ErrorCode.NONE
    used = groups.budget.used_bytes
    groups.coordinator.reload()
    assert groups.budget.used_bytes == used
    groups.coordinator.shard.close()
    assert groups.budget.used_bytes == 0
    groups.coordinator.budget = MemoryBudget(KIB)
    groups.coordinator.reload()
    assert groups.budget.used_bytes == used > groups.budget.limit_bytes
    assert groups.join("new").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_member_ids_that_nobody_uses_count() -> None:
    groups = Groups(100 * KIB)
    asked = JoinRequest("g", 10_000, 60_000, "consumer", (("range", SMALL),))
    codes = [groups.ask("join", asked).error_code for _ in range(200)]
    assert codes[0] is ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] is ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.coordinator.advance(10_000)
    assert groups.budget.used_bytes == 0


def commit_in_transaction(groups: Groups, count: int, metadata: str | None = None, first: int = 0) -> Any:
    offsets = [("t", first + number, 1, NO_LEADER_EPOCH, metadata) for number in range(count)]
    request = TransactionalCommitRequest(PRODUCER, CommitRequest("g", offsets))
    return groups.ask("commit_in_transaction", request).errors[0]


def end_transaction(groups: Groups, *, is_commit: bool) -> None:
    groups.ask("end_transaction", EndTransactionRequest(PRODUCER, EndMarker(is_commit, 0), 1))


def test_offsets_of_open_transactions_count_until_they_end() -> None:
    groups = Groups(MIB)
    groups.commit("g", 1)
    before_bytes = groups.budget.used_bytes
    commit_in_transaction(groups, 10, metadata="x" * 10)
    assert groups.budget.used_bytes == before_bytes + 10 * pending_bytes("x" * 10)
    commit_in_transaction(groups, 10, metadata="x" * 20)
    assert groups.budget.used_bytes == before_bytes + 10 * pending_bytes("x" * 20)
    end_transaction(groups, is_commit=False)
    assert groups.budget.used_bytes == before_bytes


def test_an_end_takes_over_what_was_pending_into_the_committed_offsets() -> None:
    groups, plain = Groups(MIB), Groups(MIB)
    commit_in_transaction(groups, 10)
    end_transaction(groups, is_commit=True)
    plain.commit("g", 10)
    assert groups.budget.used_bytes == plain.budget.used_bytes


def test_a_plain_commit_gives_back_what_was_pending_before_it() -> None:
    groups, plain = Groups(MIB), Groups(MIB)
    commit_in_transaction(groups, 10)
    groups.commit("g", 10)
    plain.commit("g", 10)
    assert groups.budget.used_bytes == plain.budget.used_bytes


def test_offsets_in_transactions_are_refused_when_memory_runs_out() -> None:
    groups = Groups(MIB)
    codes = [commit_in_transaction(groups, 100, first=100 * number) for number in range(20)]
    assert codes[0] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert groups.budget.used_bytes <= MIB
    end_transaction(groups, is_commit=True)
    assert groups.commit("g", 1) is ErrorCode.NONE


def commit_at_limit(groups: Groups, growth_bytes: int, metadata: str | None, code: ErrorCode) -> None:
    """Commit with as much memory left as the growth needs; `code` is the answer with one byte less."""
    used_bytes = groups.budget.used_bytes
    needed_bytes = used_bytes + groups.coordinator.shard._state.account.size_of("g") + 2 * growth_bytes
    groups.budget.limit_bytes = needed_bytes - 1
    assert groups.commit("g", 1, metadata) is code
    groups.budget.limit_bytes = needed_bytes
    assert groups.commit("g", 1, metadata) is ErrorCode.NONE
    assert groups.budget.used_bytes == used_bytes + growth_bytes


def test_a_commit_is_accepted_if_the_memory_that_is_left_suffices_to_the_byte() -> None:
    groups = Groups(MIB)
    offset_bytes = OFFSET_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * 10
    new_bytes = GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES + offset_bytes
    commit_at_limit(groups, new_bytes, "x" * 10, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    commit_at_limit(groups, TEXT_CHARACTER_BYTES * 15, "x" * 25, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    groups.budget.limit_bytes = 0
    assert groups.commit("g", 1, "x" * 25) is ErrorCode.NONE
    assert groups.commit("g", 1, "x" * 5) is ErrorCode.NONE
    assert groups.commit("g", 2, "x" * 5) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE


def test_metadata_that_is_refused_for_its_length_needs_no_memory_and_the_longest_does() -> None:
    length_max = CONFIG.offset_metadata_max_bytes
    groups = Groups(MIB)
    groups.commit("g", 1)
    groups.budget.limit_bytes = 0
    assert groups.commit("g", 1, "x" * (length_max + 1)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert groups.commit("g", 1, "x" * length_max) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    groups.budget.limit_bytes = MIB
    assert groups.commit("g", 1, "x" * length_max) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("generation_id", "code"),
    [(-1, ErrorCode.NONE), (0, ErrorCode.GROUP_ID_NOT_FOUND), (1, ErrorCode.GROUP_ID_NOT_FOUND)],
)
def test_a_commit_with_a_generation_needs_a_group_that_exists(generation_id: int, code: ErrorCode) -> None:
    request = CommitRequest("g", [("t", 0, 1, NO_LEADER_EPOCH, None)], generation_id=generation_id)
    assert Groups(MIB).ask("commit_offsets", request).errors == [code]
