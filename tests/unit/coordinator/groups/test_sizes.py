"""The memory that groups, members and offsets are estimated to take: every text and byte counts once."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.groups.classic.group import Group
from flowstone.coordinator.groups.classic.member import Member, member_bytes
from flowstone.coordinator.groups.classic.member import pending_bytes as pending_member_bytes
from flowstone.coordinator.groups.config import (
    GROUP_OVERHEAD_BYTES,
    MEMBER_OVERHEAD_BYTES,
    OFFSET_OVERHEAD_BYTES,
    PARTITION_OVERHEAD_BYTES,
    PENDING_MEMBER_OVERHEAD_BYTES,
    PENDING_OFFSET_OVERHEAD_BYTES,
    PROTOCOL_OVERHEAD_BYTES,
    TEXT_CHARACTER_BYTES,
)
from flowstone.coordinator.groups.consumer.group import ConsumerGroup, ConsumerMember
from flowstone.coordinator.groups.consumer.group import stored_member_bytes as consumer_bytes
from flowstone.coordinator.groups.consumer_records import ClassicMember, ConsumerMemberStored, ConsumerRegexStored
from flowstone.coordinator.groups.offsets import OffsetStore
from flowstone.coordinator.groups.pending_offsets import PendingOffsets
from flowstone.coordinator.groups.records import GroupStored, OffsetCommitted, OffsetRemoved, StoredMember
from flowstone.coordinator.groups.share.group import ShareGroup, ShareMember
from flowstone.coordinator.groups.share.group import stored_member_bytes as share_bytes
from flowstone.coordinator.groups.share_records import ShareMemberStored

TOPIC_ID = bytes(16)
# Powers of two: a text that is left out, or counts twice, changes every sum.
TEXTS = ("a", "bb", "c" * 4, "d" * 8, "e" * 16, "f" * 32)
ALL_CHARACTERS = 63


def consumer_member(**changes: Any) -> ConsumerMemberStored:
    made = ConsumerMemberStored("g", *TEXTS[:5], (TEXTS[5], "g" * 64), "h" * 128, 0, "uniform")
    return made._replace(**changes)


def test_a_consumer_member_counts_with_all_its_texts() -> None:
    texts = TEXT_CHARACTER_BYTES * (ALL_CHARACTERS + 64 + 128)
    assert consumer_bytes(consumer_member()) == MEMBER_OVERHEAD_BYTES + texts
    bare = consumer_member(instance_id=None, rack_id=None, regex=None)
    assert consumer_bytes(bare) == MEMBER_OVERHEAD_BYTES + texts - TEXT_CHARACTER_BYTES * (2 + 4 + 128)


def test_a_classic_member_of_a_consumer_group_counts_with_its_protocols_too() -> None:
    classic = ClassicMember(10_000, (("range", b"x" * 100), ("uniform", b"x" * 20)))
    added = consumer_bytes(consumer_member(classic=classic)) - consumer_bytes(consumer_member())
    assert added == 2 * PROTOCOL_OVERHEAD_BYTES + 120


def test_a_consumer_member_counts_with_the_partitions_that_it_has_and_gives_up() -> None:
    member = ConsumerMember(consumer_member(), frozenset())
    assert member.size_bytes == consumer_bytes(member.stored)
    member.assigned, member.revoking = {(TOPIC_ID, 0): 1, (TOPIC_ID, 1): 1}, {(TOPIC_ID, 2): 1}
    assert member.size_bytes == consumer_bytes(member.stored) + 3 * PARTITION_OVERHEAD_BYTES


def test_a_consumer_group_counts_with_its_members_and_the_topics_of_its_regular_expressions() -> None:
    group = ConsumerGroup("group")
    assert group.size_bytes == GROUP_OVERHEAD_BYTES + 5 * TEXT_CHARACTER_BYTES
    group.members_bytes = 1000
    group.regexes = {
        "a.*": ConsumerRegexStored("group", "a.*", ("ab", "abcd"), 1, 1),
        "b.*": ConsumerRegexStored("group", "b.*", ("b",), 1, 1),
    }
    assert group.size_bytes == GROUP_OVERHEAD_BYTES + (5 + 7) * TEXT_CHARACTER_BYTES + 1000


def test_a_share_member_counts_with_its_texts_and_both_its_partitions() -> None:
    stored = ShareMemberStored("g", *TEXTS[:4], TEXTS[4:])
    assert share_bytes(stored) == MEMBER_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * ALL_CHARACTERS
    without_rack = stored._replace(rack_id=None)
    assert share_bytes(stored) - share_bytes(without_rack) == 2 * TEXT_CHARACTER_BYTES
    member = ShareMember(stored)
    member.assigned, member.target = {TOPIC_ID: frozenset({0, 1})}, {TOPIC_ID: frozenset({2}), b"o" * 16: frozenset()}
    assert member.size_bytes == share_bytes(stored) + 3 * PARTITION_OVERHEAD_BYTES


def test_a_share_group_counts_with_its_members_and_the_states_of_its_topics() -> None:
    group = ShareGroup("group")
    group.members_bytes, group.states_bytes = 1000, 300
    assert group.size_bytes == GROUP_OVERHEAD_BYTES + 5 * TEXT_CHARACTER_BYTES + 1300


@pytest.mark.parametrize("instance_id", [None, "abc"])
def test_a_member_of_the_classic_protocol_counts_with_its_texts_and_bytes(instance_id: str | None) -> None:
    protocols = {"range": b"x" * 100, "uniform": b"y" * 7}
    characters = len("client") + len("host-name") + len("range") + len("uniform") + len(instance_id or "")
    expected = MEMBER_OVERHEAD_BYTES + 2 * PROTOCOL_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * characters + 107
    assert member_bytes("client", "host-name", instance_id, protocols) == expected
    member = Member("member-1", instance_id, "client", "host-name", 1, 1, protocols, b"z" * 11)
    assert member.size_bytes == expected + 8 * TEXT_CHARACTER_BYTES + 11


def test_a_member_id_that_was_handed_out_counts_with_its_characters() -> None:
    assert pending_member_bytes("member-1") == PENDING_MEMBER_OVERHEAD_BYTES + 8 * TEXT_CHARACTER_BYTES


def test_a_group_of_the_classic_protocol_counts_with_its_members() -> None:
    group = Group("group")
    group.members_bytes = 1000
    assert group.size_bytes == GROUP_OVERHEAD_BYTES + 5 * TEXT_CHARACTER_BYTES + 1000


def test_a_stored_generation_is_as_large_as_its_members_texts_and_bytes() -> None:
    member = StoredMember("a", "bb", "c" * 4, "d" * 8, 1, 1, b"x" * 100, b"y" * 1000)
    other = member._replace(group_instance_id=None, subscription=b"", assignment=b"z")
    stored = GroupStored("g", "consumer", 1, "range", "a", 1, (member, other))
    assert stored.size_bytes == (1100 + 3 * 15) + (1 + 3 * 13)
    assert stored._replace(members=()).size_bytes == 0


def test_offsets_count_with_their_metadata_until_they_are_removed() -> None:
    store = OffsetStore()
    assert (store.size_bytes("g"), store.has_metadata("g")) == (0, False)
    record = OffsetCommitted("g", "t", 0, 5, metadata="note")
    store.to_change("g")["t", 0] = record
    store.to_change("g")["t", 1] = OffsetCommitted("g", "t", 1, 5)
    store.metadata_grown("g", 4)
    assert store.has_metadata("g")
    assert store.size_bytes("g") == 2 * OFFSET_OVERHEAD_BYTES + 4 * TEXT_CHARACTER_BYTES
    store.remove(OffsetRemoved("g", "t", 0))
    store.remove(OffsetRemoved("g", "t", 0))
    store.remove(OffsetRemoved("h", "t", 0))
    assert (store.size_bytes("g"), store.has_metadata("g")) == (OFFSET_OVERHEAD_BYTES, False)
    store.remove(OffsetRemoved("g", "t", 1))
    assert store.size_bytes("g") == 0
    assert store.of_group("g") == {}
    assert "g" not in store._by_group


@pytest.mark.parametrize("count", [1, 2, 3])
def test_offsets_are_found_by_partition_whichever_list_is_the_shorter(count: int) -> None:
    store = OffsetStore()
    for partition in range(2):
        store.to_change("g")["t", partition] = OffsetCommitted("g", "t", partition, 5)
    store.to_change("h")["u", 0] = OffsetCommitted("h", "u", 0, 5)
    wanted: Any = dict.fromkeys([("t", 1), ("u", 0), ("v", 0)][:count])
    assert store.found_in(wanted) == [("g", "t", 1), ("h", "u", 0)][: min(count, 2)]


def test_pending_offsets_count_with_their_metadata_until_their_transaction_ends() -> None:
    pending = PendingOffsets()
    pending.add(1, [OffsetCommitted("g", "t", 0, 5, metadata="note"), OffsetCommitted("g", "t", 1, 5)])
    pending.add(2, [OffsetCommitted("g", "t", 0, 6, metadata="no")])
    one = PENDING_OFFSET_OVERHEAD_BYTES
    assert pending.size_bytes("g") == 3 * one + 6 * TEXT_CHARACTER_BYTES
    pending.add(1, [OffsetCommitted("g", "t", 0, 7, metadata="a")])  # in place of its first
    assert pending.size_bytes("g") == 3 * one + 3 * TEXT_CHARACTER_BYTES
    assert pending.newest_of("g")[("t", 0)].offset == 7  # type: ignore[index]
    assert [each.offset for each in pending.end(2, is_commit=True)] == [6]
    assert pending.size_bytes("g") == 2 * one + TEXT_CHARACTER_BYTES
    assert [each.offset for each in pending.end(1, is_commit=False)] == [5, 7]
    assert (pending.size_bytes("g"), pending.of_group("g"), pending.end(1, is_commit=False)) == (0, {}, [])


def test_a_committed_transaction_removes_older_pending_offsets_of_others_and_leaves_newer_ones() -> None:
    pending = PendingOffsets()
    pending.add(1, [OffsetCommitted("g", "t", 0, 5)])
    pending.add(2, [OffsetCommitted("g", "t", 0, 6)])
    pending.add(3, [OffsetCommitted("g", "t", 0, 7)])
    assert pending.end(2, is_commit=True) == [OffsetCommitted("g", "t", 0, 6)]
    assert pending.end(1, is_commit=True) == []
    assert pending.end(3, is_commit=True) == [OffsetCommitted("g", "t", 0, 7)]
    pending.add(1, [OffsetCommitted("g", "t", 0, 5)])
    pending.add(2, [OffsetCommitted("g", "t", 0, 6)])
    assert pending.end(2, is_commit=False) == [OffsetCommitted("g", "t", 0, 6)]
    assert pending.end(1, is_commit=True) == [OffsetCommitted("g", "t", 0, 5)]


def test_records_outside_of_transactions_replace_pending_offsets_of_the_same_partition() -> None:
    pending = PendingOffsets()
    for partition in range(3):
        pending.add(1, [OffsetCommitted("g", "t", partition, 5)])
    pending.drop_older([OffsetCommitted("g", "t", 0, 9), OffsetRemoved("g", "t", 1), OffsetCommitted("h", "t", 2, 9)])
    assert list(pending.of_group("g")) == [("t", 2)]
