"""The state of a classic group: its protocol, its leader, its static members, what it stores and who may commit."""

from __future__ import annotations

import pytest

from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.coordinator.groups.classic.member import Member
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.coordinator.groups.records import NO_TIMESTAMP, GroupRemoved, GroupStored, StoredMember
from flowstone.errors import ErrorCode


def member(name: str, *protocols: str, instance: str | None = None, **more: int) -> Member:
    timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 20_000, **more}
    metadata = {protocol: f"{name} {protocol}".encode() for protocol in protocols or ("range",)}
    return Member(name, instance, "client", "host", protocols=metadata, **timeouts)


def group(*members: Member, protocol_type: str = "connect", **more: object) -> Group:
    made = Group("g")
    for each in members:
        made.add(each, protocol_type)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def commit(member_id: str = "", generation: int = -1, instance: str | None = None) -> CommitRequest:
    return CommitRequest("g", (), member_id, generation, instance)


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        ([("range",)], "range"),
        ([("sticky", "range"), ("range", "sticky")], "sticky"),
        ([("sticky", "range"), ("range", "sticky"), ("range",)], "range"),
        ([("a", "b"), ("b", "a"), ("b", "a")], "b"),
        ([("x", "a", "b"), ("b", "a", "x"), ("b", "a")], "b"),
        ([("x", "a"), ("y", "a")], "a"),
    ],
)
def test_most_members_choose_among_the_protocols_that_all_support(
    preferences: list[tuple[str, ...]], chosen: str
) -> None:
    members = [member(f"m{number}", *protocols) for number, protocols in enumerate(preferences)]
    assert group(*members).select_protocol() == chosen


def test_a_member_that_joins_supports_a_protocol_of_all_others() -> None:
    made = group(member("m1", "a", "b"), member("m2", "b", "c"))
    assert [made.supports("connect", [name]) for name in "abc"] == [False, True, False]
    assert made.supports("connect", ["a", "b"])
    assert not made.supports("consumer", ["b"])
    assert not made.supports("connect", [])
    empty = Group("g")
    assert [empty.supports(*each) for each in (("consumer", ["a"]), ("", ["a"]), ("consumer", []))] == [
        True,
        False,
        False,
    ]


def test_the_first_member_leads_until_it_is_removed() -> None:
    made = group(member("m1"), member("m2"), member("m3"))
    assert made.leader == "m1"
    made.remove("m2")
    assert made.leader == "m1"
    made.remove("m1")
    assert made.leader == "m3"
    made.remove("m3")
    assert (made.leader, made.members_bytes) == (None, 0)


def test_a_leader_is_one_that_has_joined() -> None:
    made = group(member("m1"), member("m2"), member("m3"))
    assert not made.elect_joined_leader()
    assert made.leader == "m1"
    made.joins["m3"] = made.joins["m2"] = "token"
    assert made.elect_joined_leader()
    assert made.leader == "m2"
    made.joins["m1"] = "token"
    assert made.elect_joined_leader()
    assert made.leader == "m2"


def test_all_have_joined_when_nobody_is_missing_and_no_id_is_unused() -> None:
    made = group(member("m1"), member("m2"))
    made.joins["m1"] = "token"
    assert not made.all_joined
    made.joins["m2"] = "token"
    assert made.all_joined
    made.add_pending("m3")
    assert not made.all_joined


def test_ids_that_are_handed_out_count_until_they_are_used() -> None:
    made = Group("g")
    before = made.size_bytes
    made.add_pending("m1")
    handed_out = made.size_bytes
    assert handed_out > before
    assert (made.is_empty, made.is_unused) == (True, False)
    made.drop_pending("m2")
    assert made.size_bytes == handed_out
    made.drop_pending("m1")
    assert (made.size_bytes, made.is_unused) == (before, True)
    made.add_pending("m1")
    made.add(member("m1"), "connect")
    assert made.pending_joins == set()
    assert made.members_bytes == made.members["m1"].counted_bytes == made.members["m1"].size_bytes


def test_the_memory_of_a_member_is_counted_again_when_it_changes() -> None:
    made = group(member("m1"))
    before = made.members_bytes
    made.members["m1"].assignment = b"x" * 100
    made.count(made.members["m1"])
    assert made.members_bytes == before + 100
    made.count(made.members["m1"])
    assert made.members_bytes == before + 100


def test_the_longest_rebalance_timeout_counts() -> None:
    assert Group("g").rebalance_timeout_ms == 0
    made = group(member("m1", rebalance_timeout_ms=5), member("m2", rebalance_timeout_ms=7, session_timeout_ms=9))
    assert made.rebalance_timeout_ms == 7
    assert [made.session_timeout_ms(each) for each in ("m1", "m2")] == [10_000, 9]


def test_an_instance_id_belongs_to_one_member() -> None:
    made = group(member("m1", instance="i"), member("m2"))
    assert made.check_member("m1", "i") is ErrorCode.NONE
    assert made.check_member("m2", "i") is ErrorCode.FENCED_INSTANCE_ID
    assert made.check_member("m1", "j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert made.check_member("m2", None) is ErrorCode.NONE
    assert made.check_member("m3", None) is ErrorCode.UNKNOWN_MEMBER_ID
    made.remove("m1")
    assert made.static_members == {}


@pytest.mark.parametrize("leads", [True, False])
def test_a_static_member_that_returns_keeps_its_place(leads: bool) -> None:
    made = group(*[member("m1", instance="i"), member("m2")][:: 1 if leads else -1])
    made.pending_syncs = {"m1"} if leads else {"m2"}
    renamed = made.rename_static_member("m1", "m9")
    assert (renamed.member_id, made.static_members) == ("m9", {"i": "m9"})
    assert list(made.members) == (["m9", "m2"] if leads else ["m2", "m9"])
    assert made.leader == ("m9" if leads else "m2")
    assert made.pending_syncs == ({"m9"} if leads else {"m2"})


@pytest.mark.parametrize(
    ("state", "request_", "code", "in_transaction"),
    [
        (GroupState.EMPTY, commit(), 0, 0),
        (GroupState.EMPTY, commit("x"), 0, 0),
        (GroupState.EMPTY, commit("x", 0), ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
        (GroupState.STABLE, commit(), ErrorCode.UNKNOWN_MEMBER_ID, 0),
        (GroupState.STABLE, commit("x"), ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
        (GroupState.STABLE, commit("m1"), ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
        (GroupState.STABLE, commit("m1", 3), 0, 0),
        (GroupState.STABLE, commit("m1", 2), ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
        (GroupState.STABLE, commit("m1", 3, "j"), ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
        (GroupState.STABLE, commit("", 3, "i"), ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID),
        (GroupState.STABLE, commit("", -1, "i"), ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID),
        (GroupState.PREPARING_REBALANCE, commit("m1", 3), 0, 0),
        (GroupState.COMPLETING_REBALANCE, commit("m1", 3), ErrorCode.REBALANCE_IN_PROGRESS, 0),
        (GroupState.COMPLETING_REBALANCE, commit("m1", 2), ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_who_may_commit(state: GroupState, request_: CommitRequest, code: int, in_transaction: int) -> None:
    members = () if state is GroupState.EMPTY else (member("m1", instance="i"),)
    made = group(*members, state=state, generation=3)
    assert made.check_commit(request_) == code
    assert made.check_transactional_commit(request_) == in_transaction


def test_offsets_of_topics_in_use_are_kept() -> None:
    made = group(member("m1"))
    assert made.topics_in_use() == frozenset()
    made.state = GroupState.STABLE
    assert made.topics_in_use() is None  # not a consumer's: nothing is known
    assert (made.is_subscribed_to("t"), made.has_deletable_offsets) == (False, False)
    made.protocol_type = "consumer"
    assert (made.is_subscribed_to("t"), made.has_deletable_offsets) == (True, True)
    made.state = GroupState.PREPARING_REBALANCE
    assert made.topics_in_use() is None


def test_a_group_is_empty_since_its_last_generation() -> None:
    made = Group("g")
    assert made.empty_since_ms is None
    made.state_timestamp_ms = 5
    assert made.empty_since_ms is None  # only offsets were committed
    made.protocol_type = "consumer"
    assert made.empty_since_ms == 5
    made.state = GroupState.STABLE
    assert made.empty_since_ms is None
    made.state, made.state_timestamp_ms = GroupState.EMPTY, NO_TIMESTAMP
    assert made.empty_since_ms is None


def test_what_is_stored_of_a_generation_is_there_after_a_replay() -> None:
    made = group(member("m1", "a", "b", instance="i"), member("m2", "b", "a"), generation=3, protocol="b")
    record = made.stored(77, {"m1": b"assignment"})
    assert record.members == (
        StoredMember("m1", "i", "client", "host", 20_000, 10_000, b"m1 b", b"assignment"),
        StoredMember("m2", None, "client", "host", 20_000, 10_000, b"m2 b", b""),
    )
    assert record[:6] == ("g", "connect", 3, "b", "m1", 77)
    loaded = Group("g")
    loaded.apply(record)
    assert loaded.stored(77, {"m1": b"assignment"}) == record
    assert (loaded.state, loaded.state_timestamp_ms, loaded.static_members) == (GroupState.STABLE, 77, {"i": "m1"})
    assert loaded.members["m1"].protocols == {"b": b"m1 b"}
    before = made.members["m1"]
    made.apply(record)
    assert made.members["m1"] is before  # it has the record's values already, and keeps its other protocols
    assert before.assignment == b"assignment"
    for each in (made, loaded):
        assert each.members_bytes == sum(one.size_bytes for one in each.members.values())


def test_a_member_that_differs_from_its_record_is_replaced_by_it() -> None:
    made = group(member("m1", "a"), generation=3, protocol="a")
    record = made.stored(77, {})
    changed = record.members[0]._replace(session_timeout_ms=5)
    made.apply(record._replace(members=(changed,)))
    assert made.members["m1"].session_timeout_ms == 5
    made.apply(GroupStored("g", "", 4, None, None, 78, ()))
    assert (made.state, made.generation, made.protocol_type, made.leader) == (GroupState.EMPTY, 4, None, None)
    assert (made.members, made.static_members, made.members_bytes) == ({}, {}, 0)
    assert made.stored(79, {}).members == ()
    assert made.removal() == (GroupRemoved("g"),)


def test_a_description_has_the_protocol_of_a_stable_group_alone() -> None:
    made = group(member("m1", "a"), generation=3, protocol="a", state=GroupState.STABLE)
    described = made.described()
    assert (described.group_id, described.state, described.protocol_type, described.protocol) == (
        "g",
        "Stable",
        "connect",
        "a",
    )
    assert (described.generation, described.members[0].metadata) == (3, b"m1 a")
    made.state = GroupState.PREPARING_REBALANCE
    described = made.described()
    assert (described.state, described.protocol, described.members[0].metadata) == ("PreparingRebalance", "", b"")
    assert (made.type, made.state_name, made.protocol_type_name) == ("classic", "PreparingRebalance", "connect")
    assert Group("g").protocol_type_name == ""
