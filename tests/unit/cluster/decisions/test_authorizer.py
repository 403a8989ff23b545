"""The authorizer: Kafka's rules one by one, and random rules against a model that was written from the documentation.

`FLOWSTONE_ACL_CASES` sets the number of random cases.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.cluster.decisions.authorizer import Authorizer, canonical_host
from flowstone.cluster.image.acl import ALL_OPERATIONS, ALLOW, DENY, LITERAL, PREFIXED, Acl

CASES = int(os.environ.get("FLOWSTONE_ACL_CASES", "100000"))
BOB, HOST = "User:bob", "10.0.0.1"


def rule(operation: int = Op.READ, name: str = "t", permission: int = ALLOW, **more: object) -> Acl:
    parts = {"resource_type": Kind.TOPIC, "pattern_type": LITERAL, "principal": BOB, "host": "*"} | more
    return Acl(resource_name=name, operation=operation, permission=permission, **parts)  # type: ignore[arg-type]


def authorizer(*rules: Acl, **settings: object) -> Authorizer:
    made = Authorizer(**settings)  # type: ignore[arg-type]
    made.change(added=rules, removed=())
    return made


def may(made: Authorizer, operation: int = Op.READ, name: str = "t", who: str = BOB, host: str = HOST) -> bool:
    return made.allows(who, host, operation, Kind.TOPIC, name)


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not may(authorizer())


def test_a_super_user_may_do_everything_even_what_is_denied() -> None:
    made = authorizer(rule(ALL_OPERATIONS, permission=DENY), super_users=[BOB])
    assert may(made)
    assert made.allows_on_any(BOB, HOST, Op.WRITE, Kind.TOPIC)


def test_a_rule_counts_for_its_principal_host_operation_and_resource_only() -> None:
    made = authorizer(rule(host=HOST))
    assert may(made)
    assert not may(made, who="User:eve")
    assert not may(made, host="10.0.0.2")
    assert not may(made, Op.WRITE)
    assert not may(made, name="t2")
    assert not made.allows(BOB, HOST, Op.READ, Kind.GROUP, "t")


@pytest.mark.parametrize("who", [BOB, "User:*"])
@pytest.mark.parametrize(
    ("pattern", "name"), [(LITERAL, "topic"), (LITERAL, "*"), (PREFIXED, "to"), (PREFIXED, "topic")]
)
def test_names_prefixes_and_wildcards_name_resources(who: str, pattern: int, name: str) -> None:
    made = authorizer(rule(name=name, pattern_type=pattern, principal=who))
    assert may(made, name="topic")
    assert not may(made, name="t") or name == "*"


def test_a_denial_wins_over_everything_that_allows() -> None:
    made = authorizer(rule(), rule(name="*", permission=DENY))
    assert not may(made)
    assert not may(authorizer(rule(ALL_OPERATIONS), rule(permission=DENY, host=HOST)))
    assert may(authorizer(rule(ALL_OPERATIONS), rule(permission=DENY, host="10.9.9.9")))


@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER])
def test_allowing_includes_describe_and_denying_does_not(operation: Op) -> None:
    assert may(authorizer(rule(operation)), Op.DESCRIBE)
    assert may(authorizer(rule(Op.DESCRIBE), rule(operation, permission=DENY)), Op.DESCRIBE)
    assert not may(authorizer(rule(operation)), Op.DESCRIBE_CONFIGS)


def test_altering_settings_includes_describing_them() -> None:
    assert may(authorizer(rule(Op.ALTER_CONFIGS)), Op.DESCRIBE_CONFIGS)
    assert not may(authorizer(rule(Op.ALTER_CONFIGS)), Op.DESCRIBE)


def test_a_resource_without_rules_is_open_to_everyone_only_if_that_is_configured() -> None:
    made = authorizer(rule(name="other"), allows_everyone=True)
    assert may(made)
    assert not may(made, name="other", who="User:eve")
    # One that names it by a prefix, or by *, is a rule too.
    assert not may(authorizer(rule(name="", pattern_type=PREFIXED, principal="User:eve"), allows_everyone=True))
    assert not may(authorizer(rule(name="*", principal="User:eve"), allows_everyone=True))


def test_removed_rules_count_no_longer() -> None:
    rules = [rule(), rule(name="t", pattern_type=PREFIXED), rule(name="tt", pattern_type=PREFIXED)]
    made = authorizer(*rules)
    made.change(added=(), removed=[rules[0], rules[1]])
    assert not may(made)
    assert may(made, name="ttt")
    made.change(added=(), removed=rules)
    assert not may(made, name="ttt")


def test_writing_on_any_topic() -> None:
    def may_write(*rules: Acl) -> bool:
        return authorizer(*rules).allows_on_any(BOB, HOST, Op.WRITE, Kind.TOPIC)

    allowed = rule(Op.WRITE)
    assert not may_write()
    assert may_write(allowed)
    assert may_write(rule(ALL_OPERATIONS))
    assert not may_write(rule(Op.READ))
    assert not may_write(allowed, rule(Op.WRITE, permission=DENY))
    assert may_write(allowed, rule(Op.WRITE, name="u"), rule(Op.WRITE, permission=DENY))
    assert not may_write(rule(Op.WRITE, name="abc"), rule(Op.WRITE, "ab", DENY, pattern_type=PREFIXED))
    assert may_write(rule(Op.WRITE, name="abc"), rule(Op.WRITE, "abcd", DENY, pattern_type=PREFIXED))
    assert not may_write(allowed, rule(Op.WRITE, "*", DENY))
    assert may_write(rule(Op.WRITE, "*"), rule(Op.WRITE, "t", DENY))


@pytest.mark.parametrize(
    ("given", "compared"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("*", "*"),
        ("host.example", "host.example"),
    ],
)
def test_addresses_are_compared_in_one_form(given: str, compared: str) -> None:
    assert canonical_host(given) == compared


# The model

PRINCIPALS, HOSTS, NAMES = (BOB, "User:eve", "User:*"), (HOST, "10.0.0.2", "*"), ("a", "ab", "abc", "b", "*")
KINDS, OPERATIONS = (Kind.TOPIC, Kind.GROUP), (*Op, ALL_OPERATIONS)


def model(rules: set[Acl], who: str, host: str, operation: int, kind: int, name: str, everyone: bool) -> bool:
    """What the documentation says, rule by rule, without an index."""
    named = set()
    for each in rules:
        literal = each.pattern_type == LITERAL and each.resource_name in (name, "*")
        prefix = each.pattern_type == PREFIXED and name.startswith(each.resource_name)
        if each.resource_type == kind and (literal or prefix):
            named.add(each)
    concerned = {
        each for each in named if each.principal in (who, "User:*") and (each.host == "*" or each.host == host)
    }
    denied = {each.operation for each in concerned if each.permission == DENY}
    allowed = {each.operation for each in concerned if each.permission == ALLOW}
    if denied & {operation, ALL_OPERATIONS}:
        return False
    if allowed & {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}:
        allowed.add(Op.DESCRIBE)
    if Op.ALTER_CONFIGS in allowed:
        allowed.add(Op.DESCRIBE_CONFIGS)
    return bool(allowed & {operation, ALL_OPERATIONS}) or (everyone and not named)


def test_random_rules_decide_as_the_model_says() -> None:
    random = Random(22)
    for number in range(CASES // 20):
        everyone = random.random() < 0.2
        made, rules = Authorizer(allows_everyone=everyone), set[Acl]()
        for _ in range(random.randint(0, 12)):
            added = Acl(
                random.choice(KINDS),
                random.choice(NAMES),
                random.choice((LITERAL, PREFIXED)),
                random.choice(PRINCIPALS),
                random.choice(HOSTS),
                random.choice(OPERATIONS),
                random.choice((ALLOW, ALLOW, DENY)),
            )
            removed = random.choice(sorted(rules)) if rules and random.random() < 0.2 else None
            made.change(added=[added], removed=[removed] if removed else [])
            rules = (rules - {removed}) | {added}
        for _ in range(20):
            asked = (
                random.choice(PRINCIPALS[:2]),
                random.choice(HOSTS[:2]),
                random.choice(tuple(Op)),
                random.choice(KINDS),
                random.choice(NAMES[:4]),
            )
            assert made.allows(*asked) == model(rules, *asked, everyone), (number, asked, rules)


def test_every_change_of_the_rules_has_another_version() -> None:
    made = Authorizer()
    versions = [made.version]
    for added, removed in (([rule()], []), ([], [rule()]), ([], [rule()])):
        made.change(added, removed)
        versions.append(made.version)
    assert versions == sorted(set(versions))


def test_super_users_are_known() -> None:
    made = authorizer(super_users=[BOB])
    assert (made.is_super_user(BOB), made.is_super_user("User:eve")) == (True, False)


def test_a_prefix_counts_until_its_last_rule_is_removed() -> None:
    first, second = (rule(name="to", pattern_type=PREFIXED, operation=each) for each in (Op.READ, Op.WRITE))
    other = rule(name="ab", pattern_type=PREFIXED)
    made = authorizer(first, second, other)
    made.change([], [first])
    assert (may(made, Op.WRITE, "topic"), may(made, name="abc")) == (True, True)
    made.change([], [second, first])
    assert (may(made, Op.WRITE, "topic"), may(made, name="abc")) == (False, True)
    made.change([first], [other])
    assert (may(made, name="topic"), may(made, name="abc"), may(made, name="t")) == (True, False, False)


@pytest.mark.parametrize(
    ("allowed", "denied", "expected"),
    [
        (rule(name="a"), rule(name="a", permission=DENY), False),
        (rule(name="a"), rule(name="b", permission=DENY), True),
        (rule(name="a"), rule(name="*", permission=DENY), False),
        (rule(name="ab"), rule(name="a", permission=DENY, pattern_type=PREFIXED), False),
        (rule(name="a"), rule(name="ab", permission=DENY, pattern_type=PREFIXED), True),
        (rule(name="*"), rule(name="a", permission=DENY), True),
        (rule(name="a", pattern_type=PREFIXED), rule(name="a", permission=DENY), True),
        (rule(name="a", pattern_type=PREFIXED), rule(name="a", permission=DENY, pattern_type=PREFIXED), False),
        (rule(name="a"), rule(name="a", permission=DENY, operation=ALL_OPERATIONS), False),
        (rule(name="a"), rule(name="a", permission=DENY, operation=Op.WRITE), True),
        (rule(name="a", operation=Op.WRITE), rule(name="b", permission=DENY), False),
        (rule(name="a"), rule(name="a", permission=DENY, principal="User:eve"), True),
        (rule(name="a"), rule(name="a", permission=DENY, resource_type=Kind.GROUP), True),
    ],
)
def test_a_denial_counts_against_a_resource_that_may_be(allowed: Acl, denied: Acl, expected: bool) -> None:
    for rules in ((allowed, denied), (denied, allowed)):
        assert authorizer(*rules).allows_on_any(BOB, HOST, Op.READ, Kind.TOPIC) is expected


def test_a_denied_prefix_of_one_character_counts_against_names_that_begin_with_it() -> None:
    made = authorizer(rule(name="topic"), rule(name="t", pattern_type=PREFIXED, permission=DENY))
    assert not made.allows_on_any(BOB, HOST, Op.READ, Kind.TOPIC)
    assert authorizer(rule(name="topic"), rule(name="o", pattern_type=PREFIXED, permission=DENY)).allows_on_any(
        BOB, HOST, Op.READ, Kind.TOPIC
    )


def test_no_length_of_a_prefix_is_kept_without_a_rule() -> None:
    """Each length that is kept costs every decision a lookup."""
    rules = [rule(name=name, pattern_type=PREFIXED) for name in ("ab", "cd", "abc")]
    made = authorizer(*rules)
    made.change(added=(), removed=rules[:1])
    assert dict(made._lengths[Kind.TOPIC]) == {2: 1, 3: 1}
    made.change(added=(), removed=rules[1:])
    assert dict(made._lengths[Kind.TOPIC]) == {}
