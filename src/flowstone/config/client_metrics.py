"""The settings of a subscription to clients' metrics (KIP-714): which clients push which metrics, and how often.

A subscription is a resource of the type CLIENT_METRICS, with a name that the operator chooses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import re2

from flowstone.config.setting import HOUR_MS, MINUTE_MS, Kind, Setting, broker_setting
from flowstone.errors import ConfigError

ALL_METRICS = "*"
MATCH_KEYS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsSettings:
    """The settings of one subscription."""

    metrics: tuple[str, ...] = broker_setting(
        "metrics",
        Kind.LIST,
        (),
        "Prefixes of the names of metrics, such as org.apache.kafka.producer.; * for all metrics; empty: none.",
        read_only=False,
    )
    interval_ms: int = broker_setting(
        "interval.ms",
        Kind.INT,
        5 * MINUTE_MS,
        "How often clients push the metrics.",
        low=100,
        high=HOUR_MS,
        read_only=False,
    )
    match: tuple[str, ...] = broker_setting(
        "match",
        Kind.LIST,
        (),
        "Which clients push: key=pattern, of client_id, client_instance_id, client_software_name, "
        "client_software_version, client_source_address and client_source_port, with patterns of RE2 that match the "
        "whole value. All of them must match; empty: all clients.",
        read_only=False,
    )


_FIELDS = {each.metadata["setting"].name: each for each in dataclasses.fields(ClientMetricsSettings)}
CLIENT_METRICS_SETTINGS: Mapping[str, Setting] = {name: each.metadata["setting"] for name, each in _FIELDS.items()}


def parse_client_metrics(values: Mapping[str, str]) -> ClientMetricsSettings:
    """Return a subscription's settings. Raises ConfigError for an unknown name or a value that is not valid."""
    parsed: dict[str, Any] = {}
    for name, text in values.items():
        field = _FIELDS.get(name)
        if field is None:
            raise ConfigError(f"Unknown client metrics configuration: {name}")
        parsed[field.name] = field.metadata["setting"].parse(text)
    settings = ClientMetricsSettings(**parsed)
    client_patterns(settings)
    return settings


def client_patterns(settings: ClientMetricsSettings) -> dict[str, Any]:
    """Return the compiled patterns of `match` by key. Raises ConfigError if one is malformed."""
    patterns = {}
    options = re2.Options()
    options.log_errors = False
    for each in settings.match:
        key, equals, pattern = each.partition("=")
        if not equals or key not in MATCH_KEYS:
            raise ConfigError(f"match: {each!r} is not a pattern for one of {', '.join(MATCH_KEYS)}, as key=pattern")
        try:
            patterns[key] = re2.compile(pattern, options)
        except re2.error:
            raise ConfigError(f"match: {pattern!r} is not a regular expression of RE2") from None
    return patterns
