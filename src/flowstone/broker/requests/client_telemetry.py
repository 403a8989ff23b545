"""Metrics that clients push to this broker (KIP-714): who may push what, and the last values, for `/metrics`.

Operators subscribe to metrics with resources of the type CLIENT_METRICS (`config.client_metrics`). A client asks for
its subscription, and pushes to the broker that it is connected to, in the interval that it was told. Nothing is stored
on disk. Memory is bounded: of clients, of values for each, and of attributes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from math import isnan
from typing import Any, NamedTuple

from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.metadata import Metadata
from flowstone.config.client_metrics import ALL_METRICS, client_patterns, parse_client_metrics
from flowstone.errors import ApiError, ConfigError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.wire.otlp import Point

CLIENTS_MAX = 1_000
"""Clients whose metrics are kept; for a new one the client is forgotten that has been silent for longest."""

SERIES_PER_CLIENT_MAX = 400
"""Values that are kept of one client, each of a metric with its attributes; further ones are counted as dropped."""

SERIES_MAX = 5_000
"""Values that are kept of all clients together; further ones are counted as dropped. A scrape shows all of them."""

SILENT_INTERVALS = 3
"""A client is forgotten after so many intervals without a push."""

TEXT_CHARACTERS_MAX = 200
"""Longer names and attributes are cut."""

TELEMETRY_BYTES_MAX = 1 << 20
"""The size of one push, as sent and decompressed; the default of Kafka's telemetry.max.bytes."""

DEFAULT_INTERVAL_MS = 300_000
# Clients add jitter to the interval: half of it at least must pass.
EARLIEST_SHARE = 0.5


class Subscription(NamedTuple):
    """The metrics that a client is asked to push, as prefixes of names: an empty prefix means all, no prefix none."""

    subscription_id: int
    interval_ms: int
    prefixes: tuple[str, ...]


@dataclass(slots=True)
class PushingClient:
    client_id: str
    subscription: Subscription
    asked_s: float
    pushed_s: float | None = None
    is_ending: bool = False
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)


class ClientTelemetry:
    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata, self._clock = metadata, clock
        self.clients: dict[
            bytes, PushingClient
        ] = {}  # by client instance id, the one that was heard of last at the end
        self.dropped_count = 0
        self._parsed_from: Any = None
        self._parsed: list[tuple[Any, dict[str, Any]]] = []

    def subscribe(self, instance_id: bytes, session: ClientSession) -> Subscription:
        """Return the subscription of a client that asks for it, and note that it has asked."""
        subscription = self._subscription_of(instance_id, session)
        former = self.clients.pop(instance_id, None)
        if former is None:
            self._make_space()
            former = PushingClient(session.client_id or "", subscription, self._clock.monotonic())
        former.subscription, former.is_ending = subscription, False
        self.clients[instance_id] = former
        return subscription

    def check_push(self, instance_id: bytes, subscription_id: int, session: ClientSession, *, is_last: bool) -> None:
        """Raise ApiError unless the client may push now, in the subscription that it names."""
        client = self.clients.get(instance_id)
        if client is None:
            self.subscribe(instance_id, session)
            client = self.clients[instance_id]
        if client.is_ending:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has pushed its last metrics already")
        if subscription_id != self._subscription_of(instance_id, session).subscription_id:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)
        now_s = self._clock.monotonic()
        earliest_s = client.subscription.interval_ms / 1000 * EARLIEST_SHARE
        if not is_last and client.pushed_s is not None and now_s - client.pushed_s < earliest_s:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        client.pushed_s, client.is_ending = now_s, is_last

    def push(self, instance_id: bytes, points: list[Point]) -> None:
        """Store the pushed values of the metrics to which a subscription of the client applies."""
        client = self.clients.get(instance_id)
        if client is None:
            return
        prefixes = client.subscription.prefixes
        for point in points:
            if not point.name.startswith(prefixes) or isnan(point.value):
                continue
            key = _cut(point.name), tuple((_cut(name), _cut(text)) for name, text in point.attributes)
            if key not in client.values and self._is_full(client):
                self.dropped_count += 1
                continue
            client.values[key] = point.value + (client.values.get(key, 0.0) if point.is_delta else 0.0)

    def _is_full(self, client: PushingClient) -> bool:
        if len(client.values) >= SERIES_PER_CLIENT_MAX:
            return True
        return sum(len(each.values) for each in self.clients.values()) >= SERIES_MAX

    def forget_silent(self) -> None:
        """Forget clients that have not pushed for some intervals, or have ended."""
        now_s = self._clock.monotonic()
        for instance_id, client in tuple(self.clients.items()):
            last_s = client.asked_s if client.pushed_s is None else client.pushed_s
            if now_s - last_s > SILENT_INTERVALS * client.subscription.interval_ms / 1000:
                del self.clients[instance_id]

    def _make_space(self) -> None:
        if len(self.clients) >= CLIENTS_MAX:
            self.forget_silent()
        while len(self.clients) >= CLIENTS_MAX:
            del self.clients[next(iter(self.clients))]

    def _subscription_of(self, instance_id: bytes, session: ClientSession) -> Subscription:
        facts = {
            "client_id": session.client_id or "",
            "client_instance_id": instance_id.hex(),
            "client_software_name": session.software_name,
            "client_software_version": session.software_version,
            "client_source_address": session.host,
            "client_source_port": session.peer.rpartition(":")[2],
        }
        matching = [
            settings
            for settings, patterns in self._subscriptions()
            if all(pattern.fullmatch(facts[key]) for key, pattern in patterns.items())
        ]
        prefixes = dict.fromkeys(prefix for settings in matching for prefix in settings.metrics)
        asked = ("",) if ALL_METRICS in prefixes else tuple(sorted(prefixes))
        interval_ms = min((settings.interval_ms for settings in matching), default=DEFAULT_INTERVAL_MS)
        told = "\n".join((*asked, str(interval_ms), str(len(matching))))
        return Subscription(zlib.crc32(told.encode()) - (1 << 31), interval_ms, asked if matching else ())

    def _subscriptions(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the settings of all subscriptions with their patterns, parsed again when one has changed."""
        stored = self._metadata.image.client_metrics
        if stored is not self._parsed_from:
            self._parsed_from, self._parsed = stored, []
            for values in stored.values():
                try:
                    settings = parse_client_metrics(values)
                    self._parsed.append((settings, client_patterns(settings)))
                except ConfigError:  # of a newer release
                    continue
        return self._parsed


def _cut(text: str) -> str:
    return text[:TEXT_CHARACTERS_MAX]
