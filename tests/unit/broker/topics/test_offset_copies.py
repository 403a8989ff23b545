"""The requests by which offsets are copied to a branch: each for little, all of them for everything."""

from __future__ import annotations

from flowstone.broker.topics.offset_copies import OFFSETS_AT_ONCE, _requests

PARTITIONS = 3 * OFFSETS_AT_ONCE - 1


def test_a_request_is_for_as_many_groups_as_have_few_offsets_together() -> None:
    counts = [(f"g{number}", 5) for number in range(OFFSETS_AT_ONCE)]
    requests = list(_requests("from", "to", counts, range(PARTITIONS)))
    assert {len(each.group_ids) for each in requests} == {OFFSETS_AT_ONCE // 5}
    assert [name for each in requests for name in each.group_ids] == [name for name, _ in counts]
    assert {(each.first_partition, len(each.end_offsets)) for each in requests} == {(0, PARTITIONS)}


def test_a_group_with_many_offsets_is_asked_for_in_parts() -> None:
    requests = list(_requests("from", "to", [("a", 1), ("many", PARTITIONS), ("b", 1)], range(PARTITIONS)))
    parts = [each for each in requests if each.group_ids == ("many",)]
    assert [index for each in parts for index in each.end_offsets] == list(range(PARTITIONS))
    assert [each.first_partition for each in parts] == [0, OFFSETS_AT_ONCE, 2 * OFFSETS_AT_ONCE]
    assert [each.group_ids for each in requests if each not in parts] == [("a", "b")]


def test_the_offsets_of_other_topics_do_not_count_beyond_those_that_the_source_can_have() -> None:
    counts = [(f"g{number}", 1_000_000) for number in range(OFFSETS_AT_ONCE)]
    assert [len(each.group_ids) for each in _requests("from", "to", counts, [7])] == [OFFSETS_AT_ONCE]
