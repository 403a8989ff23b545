"""The assignor `simple`: everybody works, every partition is read, and little moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.coordinator.groups.share.assignor import Assignment, assign

T, U = b"t" * 16, b"u" * 16


def counts(assignment: Assignment) -> list[int]:
    return [len(partitions) for partitions in assignment.values()]


@given(members=st.integers(1, 40), partitions=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_equal_subscriptions_are_shared_evenly(members: int, partitions: int) -> None:
    subscriptions = {f"m{index}": frozenset({T}) for index in range(members)}
    assignment = assign(subscriptions, {T: range(partitions)}, {})
    assert min(counts(assignment)) >= 1
    assert max(counts(assignment)) - min(counts(assignment)) <= 1
    sharers = [sum((T, index) in each for each in assignment.values()) for index in range(partitions)]
    wanted = -(-members // partitions)
    assert max(sharers) == wanted
    assert min(sharers) >= 1


@given(members=st.integers(2, 30), partitions=st.integers(1, 60), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_member_that_leaves_moves_only_what_it_had_and_what_evens_out(
    members: int, partitions: int, data: st.DataObject
) -> None:
    names = [f"m{index}" for index in range(members)]
    subscriptions = {name: frozenset({T}) for name in names}
    before = assign(subscriptions, {T: range(partitions)}, {})
    gone = data.draw(st.sampled_from(names))
    del subscriptions[gone]
    after = assign(subscriptions, {T: range(partitions)}, before)
    sharing_before, sharing_after = -(-members // partitions), -(-(members - 1) // partitions)
    if sharing_before == sharing_after and members - 1 <= partitions:
        assert all(before[name] <= after[name] for name in after)


def test_an_assignment_that_is_still_right_stays() -> None:
    subscriptions = {f"m{index}": frozenset({T, U}) for index in range(7)}
    partitions = {T: range(5), U: range(8)}
    before = assign(subscriptions, partitions, {})
    assert assign(subscriptions, partitions, before) == before


def test_members_get_partitions_of_their_topics_only() -> None:
    assignment = assign({"a": frozenset({T}), "b": frozenset({T, U})}, {T: range(2), U: range(3)}, {})
    assert {topic for topic, _ in assignment["a"]} == {T}
    assert {(U, 0), (U, 1), (U, 2)} <= assignment["b"]


def test_topics_without_partitions_are_skipped() -> None:
    assert assign({"a": frozenset({T, U})}, {U: ()}, {}) == {"a": set()}
