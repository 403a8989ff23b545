"""Decisions to alter and describe quotas of clients."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.cluster.decisions.quota_changes import (
    QuotaAlteration,
    QuotaFilter,
    alter_quotas,
    describe_quotas,
)
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.quota import QuotaEntity
from flowstone.cluster.image.replay import apply, difference, snapshot
from flowstone.errors import ApiError, ErrorCode

RATE = "producer_byte_rate"
USER = [("user", "bob")]


def image_with(*entities: list[tuple[str, str | None]]) -> ClusterImage:
    alterations = [
        QuotaAlteration(entity, {"connection_creation_rate" if entity[0][0] == "ip" else RATE: 1.0})
        for entity in entities
    ]
    records, results = alter_quotas(EMPTY_IMAGE, alterations)
    assert not any(each.error for each in results)
    return apply(EMPTY_IMAGE, records)


def test_values_are_set_changed_and_removed() -> None:
    image = image_with(USER)
    for changes, values in (
        ({"request_percentage": 12.5}, {RATE: 1.0, "request_percentage": 12.5}),
        ({RATE: None}, {"request_percentage": 12.5}),
        ({"request_percentage": None}, None),
    ):
        image = apply(image, alter_quotas(image, [QuotaAlteration(USER, changes)])[0])
        assert image.quotas.get((("user", "bob"),)) == values


def test_what_is_set_already_makes_no_record() -> None:
    assert alter_quotas(image_with(USER), [QuotaAlteration(USER, {RATE: 1.0, "request_percentage": None})])[0] == []


def test_the_order_of_a_combination_does_not_matter() -> None:
    image = image_with([("user", "bob"), ("client-id", None)])
    assert [*image.quotas] == [(("client-id", None), ("user", "bob"))]


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ([], {RATE: 1.0}),
        ([("user", "bob"), ("user", "eve")], {RATE: 1.0}),
        ([("planet", "mars")], {RATE: 1.0}),
        ([("user", "")], {RATE: 1.0}),
        ([("user", "x" * 1001)], {RATE: 1.0}),
        ([("ip", "10.0.0.1"), ("user", "bob")], {"connection_creation_rate": 1.0}),
        ([("ip", "nowhere")], {"connection_creation_rate": 1.0}),
        ([("ip", "10.0.0.1")], {RATE: 1.0}),
        (USER, {"connection_creation_rate": 1.0}),
        (USER, {"speed": 1.0}),
        (USER, {RATE: 0.0}),
        (USER, {RATE: -1.0}),
        (USER, {RATE: 1.5}),
        (USER, {RATE: float("nan")}),
        (USER, {RATE: float("inf")}),
        (USER, {RATE: 1e300}),
    ],
)
def test_an_invalid_change_is_refused_alone(entity: Any, changes: dict[str, float]) -> None:
    wanted = [QuotaAlteration(entity, changes), QuotaAlteration([("client-id", "app")], {RATE: 5.0})]
    records, (bad, good) = alter_quotas(EMPTY_IMAGE, wanted)
    assert (bad.error, good.error) == (ErrorCode.INVALID_REQUEST, ErrorCode.NONE)
    assert bad.message
    assert [*apply(EMPTY_IMAGE, records).quotas] == [(("client-id", "app"),)]


@pytest.mark.parametrize(
    ("filters", "strict", "found"),
    [
        ([], False, "bob bob+app bob+default default app ip"),
        ([], True, ""),
        ([("user", 0, "bob")], False, "bob bob+app bob+default"),
        ([("user", 0, "bob")], True, "bob"),
        ([("user", 1, None)], False, "default"),
        ([("user", 2, None)], False, "bob bob+app bob+default default"),
        ([("user", 2, None), ("client-id", 1, None)], False, "bob+default"),
        ([("client-id", 2, None)], True, "app"),
        ([("ip", 0, "10.0.0.1")], True, "ip"),
        ([("user", 0, "eve")], False, ""),
    ],
)
def test_filters_match_as_in_kafka(filters: list[tuple[str, int, str | None]], strict: bool, found: str) -> None:
    named: dict[str, list[tuple[str, str | None]]] = {
        "bob": USER,
        "bob+app": [("client-id", "app"), ("user", "bob")],
        "bob+default": [("client-id", None), ("user", "bob")],
        "default": [("user", None)],
        "app": [("client-id", "app")],
        "ip": [("ip", "10.0.0.1")],
    }
    image = image_with(*named.values())
    matching: set[QuotaEntity] = {
        entity for entity, _ in describe_quotas(image, [QuotaFilter(*each) for each in filters], strict=strict)
    }
    assert matching == {tuple(named[name]) for name in found.split()}


@pytest.mark.parametrize(
    "filters",
    [
        [("", 2, None)],
        [("planet", 2, None)],
        [("user", 2, None), ("user", 2, None)],
        [("user", 0, None)],
        [("user", 1, "bob")],
        [("user", 7, None)],
        [("ip", 2, None), ("user", 2, None)],
    ],
)
def test_invalid_filters_are_refused(filters: list[tuple[str, int, str | None]]) -> None:
    with pytest.raises(ApiError):
        [*describe_quotas(EMPTY_IMAGE, [QuotaFilter(*each) for each in filters], strict=False)]


@pytest.mark.parametrize(
    ("filters", "told"), [(("user", 0, None), "EXACT needs a name"), (("user", 1, "bob"), "DEFAULT needs no name")]
)
def test_a_refused_filter_says_whether_it_needs_a_name(filters: tuple[str, int, str | None], told: str) -> None:
    with pytest.raises(ApiError, match=f"{told}[.]$"):
        [*describe_quotas(EMPTY_IMAGE, [QuotaFilter(*filters)], strict=False)]


def test_records_lead_from_one_image_to_another_and_a_snapshot_holds_all_quotas() -> None:
    before, after = image_with(USER, [("user", None)]), image_with(USER, [("ip", None)])
    assert apply(before, difference(before, after)).quotas == after.quotas
    assert apply(EMPTY_IMAGE, snapshot(after)).quotas == after.quotas


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ([("user", "x" * 1000)], {RATE: 1.0}),
        ([("user", "x")], {RATE: 2.0**63}),
        ([("client-id", "app")], {"request_percentage": 0.01}),
        (USER, {"controller_mutation_rate": 1.5}),
        ([("ip", "10.0.0.1")], {"connection_creation_rate": 0.0}),
        ([("ip", None)], {"connection_creation_rate": 7.0}),
        (USER, {"consumer_byte_rate": None}),
    ],
)
def test_the_largest_and_smallest_values_and_names_are_taken(entity: Any, changes: dict[str, float | None]) -> None:
    _, (result,) = alter_quotas(EMPTY_IMAGE, [QuotaAlteration(entity, changes)])
    assert result.error is ErrorCode.NONE, result.message


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        (USER, {RATE: 2.0**63 * 1.001}),
        (USER, {"consumer_byte_rate": 0.5}),
        ([("ip", "10.0.0.1")], {"connection_creation_rate": -1.0}),
        ([("ip", "10.0.0.1")], {"connection_creation_rate": 1.5}),
    ],
)
def test_the_next_values_are_refused(entity: Any, changes: dict[str, float]) -> None:
    _, (result,) = alter_quotas(EMPTY_IMAGE, [QuotaAlteration(entity, changes)])
    assert result.error is ErrorCode.INVALID_REQUEST


def test_as_many_entities_have_quotas_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.cluster.decisions.quota_changes.QUOTA_ENTITIES_MAX", 2)
    image = image_with([("user", "a")])
    wanted = [QuotaAlteration([("user", name)], {RATE: 5.0}) for name in ("b", "b", "c", "a")]
    records, results = alter_quotas(image, wanted)
    assert [each.error for each in results] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,
    ]
    assert sorted(apply(image, records).quotas) == [(("user", "a"),), (("user", "b"),)]


def test_one_address_is_one_entity_however_it_is_written() -> None:
    records, _ = alter_quotas(
        EMPTY_IMAGE, [QuotaAlteration([("ip", "::ffff:10.0.0.1")], {"connection_creation_rate": 5.0})]
    )
    assert [*apply(EMPTY_IMAGE, records).quotas] == [(("ip", "10.0.0.1"),)]
