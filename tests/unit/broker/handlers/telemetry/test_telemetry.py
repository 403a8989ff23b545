"""Client telemetry (KIP-714): subscriptions, pushes, what is kept, and what is refused."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from flowstone.broker.metrics.client_metrics import write_client_metrics
from flowstone.broker.metrics.exposition import Exposition
from flowstone.broker.requests import client_telemetry
from flowstone.cluster.decisions.configs import ConfigSource
from flowstone.cluster.image.features import METADATA_LEVEL_MAX, METADATA_VERSION
from flowstone.cluster.image.records import FeatureLevelChanged
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire import messages as m
from tests.unit.broker.handlers.test_configs import describe, set_value
from tests.unit.wire.test_otlp import attribute, gauge, pushed, total

CLIENT_METRICS = 16


@pytest.fixture
def subscribed(broker: Any) -> Any:
    asyncio.run(broker.metadata.append([FeatureLevelChanged(METADATA_VERSION, METADATA_LEVEL_MAX)]))
    assert set_value(broker, CLIENT_METRICS, "all", "metrics", "a.,b.").error_code == ErrorCode.NONE
    assert set_value(broker, CLIENT_METRICS, "all", "interval.ms", "1000").error_code == ErrorCode.NONE
    return broker


def get(broker: Any, instance_id: bytes = bytes(16)) -> Any:
    return broker.call(0, m.GetTelemetrySubscriptionsRequest(client_instance_id=instance_id))


def push(broker: Any, told: Any, metrics: bytes, **fields: Any) -> Any:
    values = {"client_instance_id": bytes(told.client_instance_id), "subscription_id": told.subscription_id} | fields
    return broker.call(0, m.PushTelemetryRequest(metrics=metrics, **values))


def refusal(broker: Any, told: Any, metrics: bytes = b"", **fields: Any) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        push(broker, told, metrics, **fields)
    return caught.value.code


def shown(broker: Any) -> str:
    page = Exposition()
    write_client_metrics(page, broker.services.telemetry)
    return page.text().decode()


def test_the_apis_are_advertised_while_there_is_a_subscription(broker: Any) -> None:
    def advertised() -> set[int]:
        return {each.api_key for each in broker.call(0, m.ApiVersionsRequest()).api_keys} & {71, 72}

    asyncio.run(broker.metadata.append([FeatureLevelChanged(METADATA_VERSION, METADATA_LEVEL_MAX)]))
    assert advertised() == set()
    assert set_value(broker, CLIENT_METRICS, "all", "metrics", "a.").error_code == ErrorCode.NONE
    assert advertised() == {71, 72}


def test_a_client_is_given_an_id_and_told_what_to_push(subscribed: Any) -> None:
    told = get(subscribed)
    assert bytes(told.client_instance_id) != bytes(16)
    assert (list(told.requested_metrics), told.push_interval_ms) == (["a.", "b."], 1000)
    assert (list(told.accepted_compression_types), told.telemetry_max_bytes) == ([4, 3, 1, 2], 1 << 20)
    assert told.delta_temporality
    again = get(subscribed, bytes(told.client_instance_id))
    assert (again.client_instance_id, again.subscription_id) == (told.client_instance_id, told.subscription_id)


def test_without_a_subscription_that_matches_nothing_is_asked_for(subscribed: Any, broker: Any) -> None:
    set_value(subscribed, CLIENT_METRICS, "all", "match", "client_id=nobody.*")
    told = get(subscribed)
    assert (list(told.requested_metrics), told.push_interval_ms) == ([], 300_000)


def test_a_subscription_to_everything_is_an_empty_prefix(subscribed: Any) -> None:
    set_value(subscribed, CLIENT_METRICS, "more", "metrics", "*")
    assert list(get(subscribed).requested_metrics) == [""]


def test_pushed_values_are_shown_and_deltas_are_added_up(subscribed: Any) -> None:
    told = get(subscribed)
    data = pushed(gauge("a.size", 2.5, attribute("topic", "t")), total("b.count", 3), gauge("c.other", 1))
    assert push(subscribed, told, data).error_code == ErrorCode.NONE
    subscribed.services.clock.advance(1.0)
    assert push(subscribed, told, gzip.compress(data), compression_type=1).error_code == ErrorCode.NONE
    text = shown(subscribed)
    assert 'metric="a.size"' in text
    assert 'attributes="topic=t"' in text
    (count,) = [line for line in text.splitlines() if 'metric="b.count"' in line]
    assert float(count.split()[-1]) == 6
    assert "c.other" not in text


def test_what_a_client_may_not_push_is_refused(subscribed: Any) -> None:
    told = get(subscribed)
    assert refusal(subscribed, told, client_instance_id=bytes(16)) == ErrorCode.INVALID_REQUEST
    assert refusal(subscribed, told, subscription_id=told.subscription_id + 1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert refusal(subscribed, told, compression_type=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(subscribed, told, b"x") == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    subscribed.services.clock.advance(1.0)
    assert refusal(subscribed, told, b"x") == ErrorCode.INVALID_RECORD
    subscribed.services.clock.advance(1.0)
    assert refusal(subscribed, told, b"x", compression_type=1) == ErrorCode.INVALID_RECORD
    subscribed.services.clock.advance(1.0)
    assert refusal(subscribed, told, bytes((1 << 20) + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
    bomb = gzip.compress(bytes(4 << 20))
    subscribed.services.clock.advance(1.0)
    assert refusal(subscribed, told, bomb, compression_type=1) == ErrorCode.TELEMETRY_TOO_LARGE
    push(subscribed, told, b"", terminating=True)
    assert refusal(subscribed, told) == ErrorCode.INVALID_REQUEST


def test_memory_is_bounded(subscribed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_telemetry, "SERIES_PER_CLIENT_MAX", 3)
    monkeypatch.setattr(client_telemetry, "CLIENTS_MAX", 4)
    told = get(subscribed)
    push(subscribed, told, pushed(*[gauge(f"a.{number}", 1) for number in range(5)]))
    assert shown(subscribed).count("flowstone_client_metric{") == 3
    assert "flowstone_telemetry_dropped_total 2" in shown(subscribed)
    for _ in range(10):
        get(subscribed)
    assert len(subscribed.services.telemetry.clients) == 4


def test_a_silent_client_is_forgotten(subscribed: Any) -> None:
    told = get(subscribed)
    push(subscribed, told, pushed(gauge("a.x", 1)))
    subscribed.services.clock.advance(4.0)
    assert "a.x" not in shown(subscribed)


@pytest.mark.parametrize(
    ("name", "value"),
    [("interval.ms", "99"), ("match", "client_id"), ("match", "colour=red"), ("match", "client_id=["), ("level", "1")],
)
def test_a_subscription_that_cannot_be_is_refused(subscribed: Any, name: str, value: str) -> None:
    response = set_value(subscribed, CLIENT_METRICS, "all", name, value)
    assert (response.error_code, bool(response.error_message)) == (ErrorCode.INVALID_CONFIG, True)


def test_a_subscription_is_described_and_listed(subscribed: Any) -> None:
    configs = {each.name: each for each in describe(subscribed, 4, CLIENT_METRICS, "all").configs}
    assert (configs["metrics"].value, configs["metrics"].config_source) == (
        "a.,b.",
        ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG,
    )
    assert (configs["match"].value, configs["match"].config_source) == ("", ConfigSource.DEFAULT_CONFIG)
    assert describe(subscribed, 4, CLIENT_METRICS, "none").configs == []
    answer = subscribed.call(0, m.ListConfigResourcesRequest())
    assert [each.resource_name for each in answer.config_resources] == ["all"]
