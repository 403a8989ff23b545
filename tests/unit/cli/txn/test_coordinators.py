"""Requests to coordinators: in parts if there are many ids, and about ids that are gone."""

from __future__ import annotations

import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.txn import coordinators as module
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.coordinators import ID_BYTES_MAX, Coordinators
from flowstone.cli.txn.facts import ListedTransaction
from tests.unit.cli.txn.conftest import Begin


def test_ids_and_producer_ids_are_asked_about_in_parts(
    link: BrokerLink, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDS_AT_ONCE", 1)
    monkeypatch.setattr(module, "PRODUCER_IDS_AT_ONCE", 1)
    for name in ("part-a", "part-b"):
        begin(name)
    coordinators = Coordinators(link)
    listed = [each for each in coordinators.list_all() if each.transactional_id.startswith("part-")]
    described = coordinators.describe_all(listed)
    assert {name: each.state for name, each in described.items()} == {"part-a": "Ongoing", "part-b": "Ongoing"}
    found = coordinators.transactional_ids([*(each.producer_id for each in listed), 10**9])
    assert {each.transactional_id for each in found.values()} == {"part-a", "part-b"}


def test_a_listed_id_that_is_gone_is_left_out(link: BrokerLink, begin: Begin) -> None:
    begin("stays")
    gone = ListedTransaction("gone", 1, 5, "Ongoing")
    (stays,) = (each for each in Coordinators(link).list_all(pattern="stays"))
    assert list(Coordinators(link).describe_all([gone, stays])) == ["stays"]


@pytest.mark.parametrize("name", ["nobody", "", "x" * (ID_BYTES_MAX + 1)])
def test_an_id_that_no_coordinator_knows_is_none(link: BrokerLink, name: str) -> None:
    assert Coordinators(link).describe(name) is None


@pytest.mark.parametrize(("states", "pattern"), [(("x" * (ID_BYTES_MAX + 1),), None), ((), "é" * ID_BYTES_MAX)])
def test_a_filter_that_is_too_long_for_a_request_is_told_at_once(
    link: BrokerLink, states: tuple[str, ...], pattern: str | None
) -> None:
    with pytest.raises(CommandError, match=f"at most {ID_BYTES_MAX} bytes can be sent"):
        Coordinators(link).list_all(states, pattern=pattern)
