"""Which quota concerns a client, who shares a rate, and that a session over its quota is muted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flowstone.broker.quotas import client_quotas as module
from flowstone.broker.quotas.client_quotas import ClientQuotas
from flowstone.broker.requests.session import ClientSession, Principal
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.quota import QuotaEntity
from flowstone.config import parse_broker_config

CONFIG, _ = parse_broker_config({})
Quotas = Mapping[QuotaEntity, Mapping[str, float]]

# In the order in which they count.
ENTITIES: list[QuotaEntity] = [
    (("client-id", "app"), ("user", "bob")),
    (("client-id", None), ("user", "bob")),
    (("user", "bob"),),
    (("client-id", "app"), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", "app"),),
    (("client-id", None),),
]


def image(quotas: Quotas) -> ClusterImage:
    return replace(EMPTY_IMAGE, quotas=quotas)


def client(user: str = "bob", client_id: str = "app") -> ClientSession:
    session = ClientSession("PLAINTEXT", "10.0.0.1:1")
    session.principal, session.client_id = Principal("User", user), client_id
    return session


@pytest.mark.parametrize("first", range(len(ENTITIES)))
def test_the_first_entity_with_a_value_counts(first: int) -> None:
    values = {entity: {"producer_byte_rate": 1000.0 * (at + 1)} for at, entity in enumerate(ENTITIES) if at >= first}
    values |= {entity: {"consumer_byte_rate": 1.0} for entity in ENTITIES[:first]}
    quotas = ClientQuotas(CONFIG, image(values))
    match = quotas._match("producer_byte_rate", client())
    assert match is not None
    assert match.quota == 1000.0 * (first + 1)


@pytest.mark.parametrize(
    ("entity", "shares_user", "shares_client_id"),
    [
        ((("client-id", "app"), ("user", "bob")), False, False),
        ((("client-id", None), ("user", None)), False, False),
        ((("user", None),), True, False),
        ((("client-id", None),), False, True),
    ],
)
def test_connections_share_the_rate_of_what_the_quota_names(
    entity: QuotaEntity, shares_user: bool, shares_client_id: bool
) -> None:
    quotas = ClientQuotas(CONFIG, image({entity: {"producer_byte_rate": 100.0}}))
    quotas.produced(client(), 1_000_000, 1.0)
    same, other_id, other_user = client(), client(client_id="other"), client(user="carol")
    for session in (same, other_id, other_user):
        quotas.produced(session, 1, 1.0)
    assert same.throttle_ms(1.0) > 0
    assert (other_id.throttle_ms(1.0) > 0) == shares_user
    assert (other_user.throttle_ms(1.0) > 0) == shares_client_id


def test_nothing_is_counted_without_quotas_and_a_new_one_counts_at_once() -> None:
    quotas = ClientQuotas(CONFIG, EMPTY_IMAGE)
    assert not quotas.is_active
    session, values = client(), {(("user", "bob"),): {"producer_byte_rate": 10.0}}
    quotas.follow(EMPTY_IMAGE, image(values), [])
    assert quotas.is_active
    quotas.produced(session, 1_000, 1.0)
    assert session.throttle_ms(1.0) > 0
    quotas.follow(image(values), EMPTY_IMAGE, [])
    other = client()
    quotas.produced(other, 1_000_000, 1.0)
    assert other.throttle_ms(1.0) == 0


def test_a_fetch_over_the_quota_is_refused_and_not_counted() -> None:
    quotas = ClientQuotas(CONFIG, image({(("user", "bob"),): {"consumer_byte_rate": 100.0}}))
    session = client()
    assert quotas.fetch_bytes_max(session) == 1000
    assert quotas.fetch_bytes_max(client("carol")) is None
    assert quotas.fetched(session, 2_000, 1.0)
    assert not quotas.fetched(session, 2_000, 1.0)
    wait_ms = session.throttle_ms(1.0)
    assert 9_900 < wait_ms < 10_100
    assert quotas.fetched(session, 1, 1.0 + wait_ms / 1000 + 2)


def test_time_on_the_loop_mutes_for_one_window_at_most() -> None:
    quotas = ClientQuotas(CONFIG, image({(("client-id", None),): {"request_percentage": 1.0}}))
    session = client()
    quotas.handled(session, 0.05, 1.0)  # five percent of a second, over a window of ten
    assert session.throttle_ms(1.0) == 0
    quotas.handled(session, 10.0, 1.0)
    assert 990 <= session.throttle_ms(1.0) <= 1010


def test_mutations_are_refused_strictly_or_owed() -> None:
    quotas = ClientQuotas(CONFIG, image({(("user", "bob"),): {"controller_mutation_rate": 1.0}}))
    session = client()
    assert quotas.may_change(session, 21, 1.0, is_strict=True)  # ten more than the burst
    assert 9_900 <= session.throttle_ms(1.0) <= 10_100
    assert not quotas.may_change(session, 1, 1.0, is_strict=True)
    assert quotas.may_change(session, 1, 1.0, is_strict=False)
    assert quotas.may_change(session, 1, 13.0, is_strict=True)


def test_the_quota_of_an_address_comes_before_the_default_one() -> None:
    values: Quotas = {
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0},
        (("ip", None),): {"connection_creation_rate": 2.0},
    }
    quotas = ClientQuotas(CONFIG, image(values))
    assert (quotas.connection_rate("10.0.0.1"), quotas.connection_rate("10.0.0.2")) == (5.0, 2.0)
    assert ClientQuotas(CONFIG, EMPTY_IMAGE).connection_rate("10.0.0.1") is None


def test_rates_and_matches_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RATES_MAX", 10)
    monkeypatch.setattr(module, "MATCHES_MAX", 10)
    quotas = ClientQuotas(
        CONFIG, image({(("client-id", None),): {"producer_byte_rate": 10.0, "controller_mutation_rate": 1.0}})
    )
    for number in range(100):
        session = client(client_id=f"app-{number}")
        quotas.produced(session, 1, 1.0)
        quotas.may_change(session, 1, 1.0, is_strict=True)
    assert max(len(quotas._buckets), len(quotas._matches)) <= 10
    quotas.produced(session, 1_000, 1.0)
    assert session.throttle_ms(1.0) > 0
