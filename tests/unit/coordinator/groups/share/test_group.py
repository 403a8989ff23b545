"""The state of a share group: which topics its members subscribe to, what they take, and when it may be removed."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share_records import ShareMemberStored
from flowstone.errors import ErrorCode

TOPIC = b"t" * 16


def stored(name: str, *topics: str) -> ShareMemberStored:
    return ShareMemberStored("g", name, None, "client", "host", topics)


def group(*members: ShareMemberStored) -> ShareGroup:
    made = ShareGroup("g")
    for each in members:
        made.store_member(each)
    return made


def test_topics_are_counted_for_each_subscriber() -> None:
    made = group(stored("m1", "a", "b"), stored("m2", "b"))
    assert made.topic_counts == {"a": 1, "b": 2}
    assert [made.is_subscribed_to(name) for name in "abc"] == [True, True, False]
    made.store_member(stored("m1", "b", "c"))
    assert made.topic_counts == {"b": 2, "c": 1}
    made.remove_member("m2")
    made.remove_member("m2")
    assert made.topic_counts == {"b": 1, "c": 1}
    made.remove_member("m1")
    assert (made.topic_counts, made.members_bytes, made.is_empty) == ({}, 0, True)


def test_the_revision_grows_when_topics_come_or_go() -> None:
    made = group(stored("m1", "a"))
    revisions = [made.subscriptions_revision]
    for member in (stored("m1", "a"), stored("m2")):  # no topic comes or goes
        made.store_member(member)
        assert made.subscriptions_revision == revisions[-1]
    for member in (stored("m1", "a", "b"), stored("m1", "b"), stored("m1", "c")):
        made.store_member(member)
        revisions.append(made.subscriptions_revision)
    made.remove_member("m1")
    revisions.append(made.subscriptions_revision)
    assert revisions == sorted(set(revisions))


@pytest.mark.parametrize(
    ("topics", "counts"),
    [
        (("a", "b"), {"a": 1, "b": 2}),
        (("b",), {"b": 2}),
        (("a",), {"a": 1, "b": 1}),
        (("b", "c"), {"b": 2, "c": 1}),
        ((), {"b": 1}),
    ],
)
def test_counts_can_be_had_for_topics_that_a_member_does_not_have_yet(
    topics: tuple[str, ...], counts: dict[str, int]
) -> None:
    made = group(stored("m1", "a", "b"), stored("m2", "b"))
    assert made.topic_counts_with(made.members_by_id["m1"], topics) == counts
    assert made.topic_counts == {"a": 1, "b": 2}
    assert made.topic_counts_with(None, ("b", "z")) == {"a": 1, "b": 3, "z": 1}


def test_the_memory_of_members_follows_what_they_have() -> None:
    made = group(stored("m1", "a"))
    member = made.members_by_id["m1"]
    alone = made.members_bytes
    assert alone == member.size_bytes
    made.store_member(stored("m1", "a" * 100))
    assert made.members_bytes == member.size_bytes >= alone + 99
    longer = made.members_bytes
    made.assign(member, target={TOPIC: frozenset({0, 1})})
    with_target = made.members_bytes
    assert with_target == member.size_bytes > longer
    made.assign(member, assigned={TOPIC: frozenset({0})})
    assert made.members_bytes == member.size_bytes > with_target
    assert (member.assigned, member.target) == ({TOPIC: frozenset({0})}, {TOPIC: frozenset({0, 1})})
    made.assign(member, assigned={}, target={})
    assert made.members_bytes == longer
    made.states_bytes = 5
    assert made.size_bytes == ShareGroup("g").size_bytes + longer + 5
    made.remove_member("m1")
    assert made.members_bytes == 0


def test_a_group_is_unused_without_members_and_states() -> None:
    made = ShareGroup("g")
    assert (made.is_unused, made.state_name) == (True, "Empty")
    for states in (made.initialized, made.initializing, made.deleting):
        states[TOPIC] = ("t", frozenset({0})) if states is not made.deleting else "t"  # type: ignore[assignment, index]
        assert (made.is_unused, made.is_empty) == (False, True)
        states.clear()
    made.store_member(stored("m1"))
    assert (made.is_unused, made.is_empty, made.state_name, list(made.members)) == (False, False, "Stable", ["m1"])


def test_a_share_group_has_no_committed_offsets() -> None:
    made = group(stored("m1", "a"))
    request = CommitRequest("g", (), "m1", 0)
    assert made.check_commit(request) is ErrorCode.GROUP_ID_NOT_FOUND
    assert made.check_transactional_commit(request) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (made.topics_in_use(), made.has_deletable_offsets, made.empty_since_ms) == (frozenset(), False, None)
    described = made.described()
    assert (described.state, described.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert (made.type, made.protocol_type_name) == ("share", "share")
    assert len(made.removal()) == 3


def test_a_share_group_has_one_session_timeout_and_takes_more_with_a_longer_name() -> None:
    made = group(stored("m1"))
    made.session_ms = 45_000
    assert made.session_timeout_ms("m1") == 45_000
    assert ShareGroup("gg").size_bytes > ShareGroup("g").size_bytes
