"""Decisions to create and delete access rules, and what filters match."""

from __future__ import annotations

import pytest

from flowstone.broker.loop.time_slices import run_whole
from flowstone.cluster.decisions.acl_changes import (
    AclFilter,
    check_filter,
    create_acls,
    delete_rules,
    find_rules,
)
from flowstone.cluster.image.acl import ANY_PATTERN, LITERAL, MATCH_PATTERN, PREFIXED, Acl
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import AclsDeleted
from flowstone.cluster.image.records.acls import RULES_AT_ONCE
from flowstone.cluster.image.replay import apply, difference, snapshot
from flowstone.errors import ApiError, ErrorCode

RULE = Acl(2, "topic", LITERAL, "User:bob", "*", 3, 3)


def image_with(*rules: Acl) -> ClusterImage:
    return apply(EMPTY_IMAGE, create_acls(EMPTY_IMAGE, rules)[0])


def test_rules_are_added_once() -> None:
    image = image_with(RULE, RULE)
    assert [*image.acls] == [RULE]
    records, results = create_acls(image, [RULE])
    assert (records, [each.error for each in results]) == ([], [ErrorCode.NONE])


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": 1},
        {"resource_type": 0},
        {"resource_type": 99},
        {"pattern_type": ANY_PATTERN},
        {"pattern_type": MATCH_PATTERN},
        {"operation": 1},
        {"operation": 0},
        {"operation": 99},
        {"permission": 1},
        {"permission": 0},
        {"principal": "bob"},
        {"principal": ":bob"},
        {"principal": "User:"},
        {"resource_name": ""},
        {"resource_name": "x" * 1001},
        {"host": ""},
        {"resource_type": 4, "resource_name": "my-cluster"},
    ],
)
def test_an_invalid_rule_is_refused_alone(change: dict[str, object]) -> None:
    records, results = create_acls(EMPTY_IMAGE, [RULE._replace(**change), RULE])  # type: ignore[arg-type]
    assert [each.error for each in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert results[0].message
    assert [*apply(EMPTY_IMAGE, records).acls] == [RULE]


def test_an_address_is_stored_in_the_form_in_which_it_is_compared() -> None:
    image = image_with(RULE._replace(host="0:0:0:0:0:0:0:1"))
    assert [rule.host for rule in image.acls] == ["::1"]
    (result,) = run_whole(find_rules(image.acls, [AclFilter(host="0:0:0:0:0:0:0:1")]))
    assert len(result.deleted) == 1


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (AclFilter(), "literal prefixed all group"),
        (AclFilter(resource_type=2), "literal prefixed all"),
        (AclFilter(resource_name="topic", pattern_type=LITERAL), "literal"),
        (AclFilter(resource_name="topic"), "literal"),
        (AclFilter(resource_name="top", pattern_type=PREFIXED), "prefixed"),
        (AclFilter(resource_name="top", pattern_type=LITERAL), ""),
        (AclFilter(resource_name="topic", pattern_type=MATCH_PATTERN), "literal prefixed all"),
        (AclFilter(resource_name="to", pattern_type=MATCH_PATTERN), "all"),
        (AclFilter(pattern_type=PREFIXED), "prefixed"),
        (AclFilter(principal="User:eve"), "group"),
        (AclFilter(operation=4), "group"),
        (AclFilter(permission=2), "prefixed"),
        (AclFilter(host="10.0.0.1"), "all"),
    ],
)
def test_a_filter_matches_by_each_of_its_parts(wanted: AclFilter, matches: str) -> None:
    rules = {
        "literal": RULE,
        "prefixed": RULE._replace(resource_name="top", pattern_type=PREFIXED, permission=2),
        "all": RULE._replace(resource_name="*", host="10.0.0.1"),
        "group": RULE._replace(resource_type=3, resource_name="g", principal="User:eve", operation=4),
    }
    assert [name for name, rule in rules.items() if wanted.matches(rule)] == matches.split()
    image = image_with(*rules.values())
    (result,) = run_whole(find_rules(image.acls, [wanted]))
    assert [*result.deleted] == [rules[name] for name in matches.split()]
    records, deleted = delete_rules(image, result.deleted)
    assert all(deleted)
    assert [*apply(image, records).acls] == [rule for name, rule in rules.items() if name not in matches.split()]


@pytest.mark.parametrize("part", ["resource_type", "operation", "permission", "pattern_type"])
def test_an_unknown_part_of_a_filter_is_refused(part: str) -> None:
    with pytest.raises(ApiError, match="unknown"):
        check_filter(AclFilter(**{part: 0}))  # type: ignore[arg-type]
    filters = [AclFilter(**{part: 99}), AclFilter()]  # type: ignore[arg-type]
    bad, good = run_whole(find_rules([RULE], filters))
    assert (bad.error, bad.deleted, good.deleted) == (ErrorCode.INVALID_REQUEST, (), [RULE])


def test_a_rule_that_two_filters_match_is_deleted_once() -> None:
    first, second = run_whole(find_rules([RULE], [AclFilter(), AclFilter()]))
    assert (first.deleted, second.deleted) == ([RULE], [])


def test_a_rule_that_another_client_has_deleted_meanwhile_is_not_deleted_again() -> None:
    gone = RULE._replace(resource_name="gone")
    records, deleted = delete_rules(image_with(RULE), [gone, RULE])
    assert deleted == [False, True]
    assert records == [AclsDeleted((RULE,))]
    assert delete_rules(image_with(RULE), [gone]) == ([], [False])


def test_many_rules_are_looked_at_in_steps() -> None:
    rules = [RULE._replace(resource_name=f"t{number}") for number in range(5 * RULES_AT_ONCE)]
    steps = find_rules(rules, [AclFilter(principal="User:eve")])
    assert sum(1 for _ in steps) >= 10


def test_records_lead_from_one_image_to_another_and_a_snapshot_holds_all_rules() -> None:
    rules = [RULE._replace(resource_name=f"t{number}") for number in range(2_500)]
    before = image_with(*rules[:2_000])
    after = image_with(*rules[500:])
    assert apply(before, difference(before, after)).acls == after.acls
    assert apply(EMPTY_IMAGE, snapshot(after)).acls == after.acls
