"""The state of a consumer group: what is counted of its members, who owns a partition, and who may commit and fetch."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.messages import STATIC_LEAVE_EPOCH
from flowstone.coordinator.groups.consumer_records import (
    ClassicMember,
    ConsumerKey,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerRegexStored,
    MemberState,
    Partition,
)
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.errors import ErrorCode

TOPIC = b"t" * 16
CLASSIC = ClassicMember(30_000, (("range", b"12345"),))


def stored(name: str = "m", *topics: str, **more: Any) -> ConsumerMemberStored:
    properties = {
        "instance_id": None,
        "rack_id": None,
        "client_id": "c",
        "client_host": "h",
        "regex": None,
        "assignor": None,
    }
    return ConsumerMemberStored(
        "g", name, subscribed_topics=topics, rebalance_timeout_ms=1000, **{**properties, **more}
    )


def current(name: str, epoch: int, assigned: str = "", revoking: str = "", **more: Any) -> ConsumerMemberCurrentStored:
    state = more.get("state", MemberState.STABLE)
    had = (dict.fromkeys(places(text), since) for text, since in ((assigned, epoch), (revoking, epoch - 1)))
    return ConsumerMemberCurrentStored("g", name, epoch, more.get("previous", epoch - 1), state, *had)


def places(text: str) -> set[Partition]:
    return {(TOPIC, int(each)) for each in text.split()}


def group(*members: ConsumerMemberStored) -> ConsumerGroup:
    made = ConsumerGroup("g")
    for each in members:
        made.store_member(each)
    return made


def commit(member: str = "", generation: int = -1, **more: Any) -> CommitRequest:
    return CommitRequest("g", (), member, generation, **more)


def test_topics_are_counted_for_each_subscriber() -> None:
    made = group(stored("m1", "a", "b"), stored("m2", "b"))
    assert made.topic_subscribers == {"a": 1, "b": 2}
    made.store_member(stored("m1", "b", "c"))
    assert made.topic_subscribers == {"b": 2, "c": 1}
    made.remove_member("m2")
    assert made.topic_subscribers == {"b": 1, "c": 1}
    made.remove_member("m1")
    made.remove_member("m1")
    assert (made.topic_subscribers, made.members_bytes, made.is_empty, made.is_unused) == ({}, 0, True, True)


def test_patterns_count_while_a_member_has_them() -> None:
    made = group(stored("m1", "a", regex="x.*"), stored("m2", regex="x.*"))
    made.regexes["x.*"] = ConsumerRegexStored("g", "x.*", ("x1", "x2"), 1, 1)
    made.regexes["y"] = ConsumerRegexStored("g", "y", ("y",), 1, 1)
    assert made.regex_subscribers == {"x.*": 2}
    assert made.subscribed_topics() == {"a", "x1", "x2"}
    assert made.topics_in_use() == {"a", "x1", "x2"}
    made.regexes["z"] = ConsumerRegexStored("g", "z", ("z",), 1, 1)
    made.store_member(stored("m3", regex="z"))
    assert [made.is_subscribed_to(name) for name in ("a", "x1", "y", "z")] == [True, True, False, True]
    made.remove_member("m3")
    assert made.topics_of(made.members_by_id["m1"]) == {"a", "x1", "x2"}
    assert made.topics_of(made.members_by_id["m2"]) == {"x1", "x2"}
    made.store_member(stored("m2", "b"))
    assert (made.regex_subscribers, made.topics_of(made.members_by_id["m2"])) == ({"x.*": 1}, {"b"})
    made.remove_member("m1")
    assert (made.regex_subscribers, made.subscribed_topics()) == ({}, {"b"})


def test_classic_members_are_counted() -> None:
    made = group(stored("m1", classic=CLASSIC), stored("m2"))
    assert made.classic_count == 1
    made.store_member(stored("m2", classic=CLASSIC))
    assert made.classic_count == 2
    made.store_member(stored("m1"))
    assert made.classic_count == 1
    made.remove_member("m2")
    assert made.classic_count == 0


def test_the_session_timeout_is_the_groups_or_the_classic_members_own() -> None:
    made = group(stored("m1", classic=CLASSIC), stored("m2"))
    assert [made.session_timeout_ms(each) for each in ("m1", "m2")] == [30_000, 45_000]


def test_an_instance_id_is_that_of_the_member_that_had_it_last() -> None:
    made = group(stored("m1", instance_id="i"))
    made.store_member(stored("m2", instance_id="i"))
    made.remove_member("m1")
    found = made.static_member("i")
    assert found is made.members_by_id["m2"]
    made.store_member(stored("m2", instance_id="j"))
    assert (made.static_member("i"), made.static_member("j")) == (None, found)
    made.remove_member("m2")
    assert made.static_members == {}


def test_the_memory_of_a_member_is_counted_once_and_given_back() -> None:
    made = group(stored("m1"))
    before = made.members_bytes
    made.store_member(stored("m1", "a" * 100))
    longer = made.members_bytes
    assert longer >= before + 100
    made.store_current(current("m1", 2, "0 1 2", "3"))
    with_partitions = made.members_bytes
    assert with_partitions > longer
    made.store_current(current("m1", 3, "0 1"))
    assert longer < made.members_bytes < with_partitions
    empty_bytes = ConsumerGroup("g").size_bytes
    assert made.size_bytes == empty_bytes + made.members_bytes
    made.regexes["x"] = ConsumerRegexStored("g", "x", ("topic",), 1, 1)
    assert made.size_bytes > empty_bytes + made.members_bytes
    made.remove_member("m1")
    assert made.members_bytes == 0


def test_a_partition_is_owned_by_the_member_that_has_it_or_gives_it_up() -> None:
    made = group(stored("m1"), stored("m2"))
    made.store_current(current("m1", 2, "0 1", "2"))
    assert made.owners == dict.fromkeys(places("0 1 2"), "m1")
    made.store_current(current("m2", 3, "2"))
    made.store_current(current("m1", 3, "1"))
    assert made.owners == {(TOPIC, 1): "m1", (TOPIC, 2): "m2"}
    made.store_current(current("m1", 4, "", "1"))
    assert made.owners[TOPIC, 1] == "m1"
    made.drop_current("m2")
    made.drop_current("unknown")
    assert made.owners == {(TOPIC, 1): "m1"}
    assert made.members_by_id["m2"].epoch == 0
    made.targets["m1"] = frozenset(places("1"))
    assert made.target_of("m1") == places("1")
    made.remove_member("m1")
    assert (made.owners, made.targets, made.target_of("m1")) == ({}, {}, frozenset())


def test_dropping_a_current_assignment_starts_the_member_over() -> None:
    made = group(stored("m1"))
    made.store_current(current("m1", 5, "0", state=MemberState.UNREVOKED))
    member = made.members_by_id["m1"]
    assert (member.epoch, member.previous_epoch, member.state) == (5, 4, MemberState.UNREVOKED)
    made.drop_current("m1")
    assert (member.epoch, member.previous_epoch, member.state) == (0, 0, MemberState.STABLE)
    assert (member.assigned, member.revoking) == ({}, {})


def test_a_member_that_only_an_assignment_names_is_made() -> None:
    made = ConsumerGroup("g")
    made.store_current(current("m1", 2, "0"))
    assert (list(made.members), made.members_by_id["m1"].epoch) == (["m1"], 2)
    assert made.member_for_replay("m1") is made.members_by_id["m1"]


def test_the_state_is_the_furthest_from_stable() -> None:
    made = ConsumerGroup("g")
    assert made.state_name == "Empty"
    made.store_member(stored("m1"))
    made.store_member(stored("m2"))
    made.epoch, made.assignment_epoch = 3, 2
    assert made.state_name == "Assigning"
    made.assignment_epoch = 3
    made.store_current(current("m1", 3))
    made.store_current(current("m2", 2))
    assert made.state_name == "Reconciling"
    made.store_current(current("m2", 3, state=MemberState.UNRELEASED))
    assert made.state_name == "Reconciling"
    made.store_current(current("m2", 3))
    assert made.state_name == "Stable"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (commit(), ErrorCode.UNKNOWN_MEMBER_ID),
        (commit("x", 3), ErrorCode.UNKNOWN_MEMBER_ID),
        (commit("new", 3), ErrorCode.NONE),
        (commit("new", 2), ErrorCode.NONE),
        (commit("new", 4), ErrorCode.STALE_MEMBER_EPOCH),
        (commit("new", 3, knows_member_epochs=False), ErrorCode.UNSUPPORTED_VERSION),
        (commit("old", 3), ErrorCode.NONE),
        (commit("old", 2), ErrorCode.ILLEGAL_GENERATION),
        (commit("old", 4, knows_member_epochs=False), ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_who_may_commit(request_: CommitRequest, code: ErrorCode) -> None:
    made = group(stored("new"), stored("old", classic=CLASSIC))
    for name in ("new", "old"):
        made.store_current(current(name, 3))
    assert made.check_commit(request_) is code
    expected = ErrorCode.ILLEGAL_GENERATION if code is ErrorCode.STALE_MEMBER_EPOCH else code
    if request_.generation_id < 0:
        expected = ErrorCode.NONE
    assert made.check_transactional_commit(request_) is expected


def test_without_members_anybody_commits_who_claims_no_generation() -> None:
    made = ConsumerGroup("g")
    for check in (made.check_commit, made.check_transactional_commit):
        assert check(commit()) is ErrorCode.NONE
        assert check(commit("m")) is ErrorCode.NONE
        assert check(commit("m", 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    made.store_member(stored("m1"))
    assert made.check_transactional_commit(commit("x")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert made.check_transactional_commit(commit(group_instance_id="i")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_of_an_older_epoch_counts_for_what_the_member_has_had_since() -> None:
    made = group(stored("new"), stored("old", classic=CLASSIC))
    for name in ("new", "old"):
        made.store_current(current(name, 3, "0", "1"))
    assert [made.is_commit_outdated(commit("new", epoch)) for epoch in (2, 3)] == [True, False]
    assert not made.is_commit_outdated(commit("old", 2))
    assert not made.is_commit_outdated(commit("x", 2))
    assert [made.may_commit("new", epoch, (TOPIC, 0)) for epoch in (2, 3, 4)] == [False, True, True]
    assert [made.may_commit("new", epoch, (TOPIC, 1)) for epoch in (1, 2)] == [False, True]
    assert not made.may_commit("new", 9, (TOPIC, 2))


@pytest.mark.parametrize(
    ("member", "epoch", "code"),
    [("m1", 3, 0), ("m1", 2, ErrorCode.STALE_MEMBER_EPOCH), ("m1", 4, ErrorCode.STALE_MEMBER_EPOCH), ("x", 3, 25)],
)
def test_a_member_fetches_in_its_epoch(member: str, epoch: int, code: int) -> None:
    made = group(stored("m1"))
    made.store_current(current("m1", 3))
    assert made.check_fetch(member, epoch) == code


def test_a_group_is_removed_with_all_of_its_records() -> None:
    made = group(stored("m1"), stored("m2"))
    made.regexes["x"] = ConsumerRegexStored("g", "x", (), 1, 1)
    removed = [tuple(each) for each in made.removal()]
    kinds = [each[1] for each in removed]
    for kind in (ConsumerKey.MEMBER_CURRENT, ConsumerKey.MEMBER_TARGET, ConsumerKey.MEMBER):
        assert [each[2] for each in removed if each[1] is kind] == ["m1", "m2"]
    assert [each[2] for each in removed if each[1] is ConsumerKey.REGEX] == ["x"]
    assert kinds[-1] is ConsumerKey.GROUP
    assert set(kinds) == set(ConsumerKey)
    assert kinds.index(ConsumerKey.TARGET) < kinds.index(ConsumerKey.MEMBER)


def test_classic_requests_see_no_such_group() -> None:
    made = group(stored("m1"))
    described = made.described()
    assert (described.group_id, described.state, described.error_code) == ("g", "Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert (made.type, made.protocol_type_name, made.has_deletable_offsets) == ("consumer", "consumer", True)
    assert made.empty_since_ms is None


def test_the_memory_of_a_classic_member_has_its_protocols() -> None:
    plain, classic = group(stored("m1")), group(stored("m1", classic=CLASSIC))
    longer = group(stored("m1", classic=ClassicMember(30_000, (("range", b"1234567"),))))
    assert classic.members_bytes > plain.members_bytes
    assert longer.members_bytes == classic.members_bytes + 2
    assert ConsumerGroup("gg").size_bytes > ConsumerGroup("g").size_bytes


def test_a_static_member_that_left_is_away() -> None:
    made = group(stored("m1", instance_id="i"))
    assert not made.members_by_id["m1"].is_away
    made.store_current(current("m1", STATIC_LEAVE_EPOCH))
    assert made.members_by_id["m1"].is_away


def test_a_member_that_is_made_for_an_assignment_has_no_properties() -> None:
    member = ConsumerGroup("g").member_for_replay("m1").stored
    assert (member.rebalance_timeout_ms, member.subscribed_topics, member.classic) == (-1, (), None)
