"""The limits of access rules and quotas: the last one that is taken, and the first one that is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flowstone.cluster.decisions import acl_changes, quota_changes
from flowstone.cluster.decisions.acl_changes import PART_CHARACTERS_MAX, create_acls, delete_rules
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.decisions.quota_changes import NAME_CHARACTERS_MAX, VALUE_MAX, QuotaAlteration, alter_quotas
from flowstone.cluster.image.acl import ALLOW, LITERAL, Acl
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import ClientQuotaChanged
from flowstone.cluster.image.records import acls as acl_records
from flowstone.cluster.image.replay import apply
from flowstone.errors import ErrorCode


def rule(name: str = "t", *, principal: str = "User:bob", host: str = "*") -> Acl:
    return Acl(ResourceType.TOPIC, name, LITERAL, principal, host, AclOperation.READ, ALLOW)


def with_rules(*rules: Acl) -> ClusterImage:
    return apply(EMPTY_IMAGE, create_acls(EMPTY_IMAGE, rules)[0])


def codes(image: ClusterImage, *rules: Acl) -> list[ErrorCode]:
    return [result.error for result in create_acls(image, rules)[1]]


@pytest.mark.parametrize(
    "made",
    [
        lambda text: rule("t".ljust(len(text), "t")),
        lambda text: rule(principal="User:".ljust(len(text), "b")),
        lambda text: rule(host="h" * len(text)),
    ],
)
def test_each_part_of_a_rule_may_be_as_long_as_the_limit(made: Any) -> None:
    assert codes(EMPTY_IMAGE, made("x" * PART_CHARACTERS_MAX)) == [ErrorCode.NONE]
    assert codes(EMPTY_IMAGE, made("x" * (PART_CHARACTERS_MAX + 1))) == [ErrorCode.INVALID_REQUEST]


def test_there_are_as_many_rules_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACLS_MAX", 3)
    image = with_rules(rule("a"))
    assert codes(image, rule("a"), rule("b"), rule("b"), rule("c"), rule("d"), rule("c")) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,
    ]
    full = apply(image, create_acls(image, [rule("b"), rule("c")])[0])
    assert codes(full, rule("a"), rule("d")) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_many_rules_are_stored_and_removed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "RULES_AT_ONCE", 2)
    monkeypatch.setattr(acl_records, "RULES_AT_ONCE", 2)
    rules = [rule(name) for name in "abcde"]
    records, _ = create_acls(EMPTY_IMAGE, rules)
    assert [len(record.rules) for record in records] == [2, 2, 1]  # type: ignore[attr-defined]
    image = apply(EMPTY_IMAGE, records)
    assert list(image.acls) == rules
    records, deleted = delete_rules(image, rules)
    assert [len(record.rules) for record in records] == [2, 2, 1]  # type: ignore[attr-defined]
    assert (deleted, list(apply(image, records).acls)) == ([True] * 5, [])


@pytest.mark.parametrize("principal", ["", ":", "User:", ":bob", "User", "bob"])
def test_a_principal_has_a_type_and_a_name(principal: str) -> None:
    assert codes(EMPTY_IMAGE, rule(principal=principal)) == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(("name", "code"), [("kafka-cluster", 0), ("*", 0), ("t", 42), ("", 42)])
def test_the_cluster_has_one_name(name: str, code: int) -> None:
    assert codes(EMPTY_IMAGE, rule(name)._replace(resource_type=ResourceType.CLUSTER)) == [code]


def quota(
    name: str | None, value: float | None = 1.0, *, kind: str = "user", key: str = "producer_byte_rate"
) -> QuotaAlteration:
    return QuotaAlteration([(kind, name)], {key: value})


def quota_code(alteration: QuotaAlteration, image: ClusterImage = EMPTY_IMAGE) -> ErrorCode:
    records, (result,) = alter_quotas(image, [alteration])
    assert bool(records) == (result.error is ErrorCode.NONE)
    return result.error


def test_the_name_of_an_entity_has_one_character_and_up_to_the_limit() -> None:
    for length, code in ((0, 42), (1, 0), (NAME_CHARACTERS_MAX, 0), (NAME_CHARACTERS_MAX + 1, 42)):
        assert quota_code(quota("x" * length)) == code
    assert quota_code(quota(None)) == 0


@pytest.mark.parametrize(
    ("value", "code"),
    [(0.0, 42), (-1.0, 42), (0.5, 42), (1.0, 0), (1.5, 42), (VALUE_MAX, 0), (VALUE_MAX * 1.01, 42)],
)
def test_a_byte_rate_is_a_positive_whole_number(value: float, code: int) -> None:
    assert quota_code(quota("x", value)) == code


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_quota_is_a_number(value: float) -> None:
    assert quota_code(quota("x", value, key="request_percentage")) == 42


@pytest.mark.parametrize(("value", "code"), [(0.0, 42), (0.5, 0), (1.5, 0)])
def test_a_percentage_may_have_a_fraction(value: float, code: int) -> None:
    assert quota_code(quota("x", value, key="request_percentage")) == code


@pytest.mark.parametrize(("value", "code"), [(-1.0, 42), (0.0, 0), (1.0, 0), (1.5, 42)])
def test_a_rate_of_connections_may_be_zero(value: float, code: int) -> None:
    assert quota_code(quota("10.0.0.1", value, kind="ip", key="connection_creation_rate")) == code


def test_as_many_entities_have_quotas_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_changes, "QUOTA_ENTITIES_MAX", 3)
    image = apply(EMPTY_IMAGE, [ClientQuotaChanged((("user", "a"),), {"producer_byte_rate": 5.0})])
    records, results = alter_quotas(image, [quota(name) for name in ("a", "b", "b", "c", "d", "a")])
    assert [result.error for result in results] == [0, 0, 0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert "At most 3 entities" in (results[4].message or "")
    assert set(apply(image, records).quotas) == {(("user", name),) for name in "abc"}


def test_a_refused_entity_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_changes, "QUOTA_ENTITIES_MAX", 1)
    _, results = alter_quotas(EMPTY_IMAGE, [quota("x", -1.0), quota("a")])
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUEST, 0]
