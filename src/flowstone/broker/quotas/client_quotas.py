"""The quotas of clients on this broker: which one concerns a session, and for how long the session is throttled.

The quota of a user and client id is the first one that the metadata has for: the user and the client id, the user and
the default client id, the user, the default user and the client id, both defaults, the default user, the client id, the
default client id. All connections of the same user and client id, or of the same user, or of the same client id, share
the rate, by what the quota names. Each broker counts alone.

Without quotas `is_active` is False, and nothing is counted. Clocks are the caller's: every function gets the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from flowstone.broker.quotas.token_bucket import TokenBucket
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.quota import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    QuotaEntity,
)

if TYPE_CHECKING:
    from flowstone.cluster.image.cluster_image import ClusterImage
    from flowstone.cluster.image.records import MetadataRecord
    from flowstone.config import BrokerConfig

# Users and client ids whose rates are kept; the least recently used ones begin anew.
RATES_MAX = 20_000
# Users and client ids whose quotas are known without a search.
MATCHES_MAX = 20_000

_NO_ENTITY = ""


class Match(NamedTuple):
    """The quota that concerns a client, and the key of the rate that it shares with others."""

    quota: float
    rate_key: tuple[str, str, str]


class ClientQuotas:
    """All quotas of clients, and the rates of those that have one."""

    def __init__(self, config: BrokerConfig, image: ClusterImage) -> None:
        # What a client may begin with, or do after it was idle: a whole window of Kafka's, but for its newest sample.
        self._sample_s = config.quota_window_size_seconds
        self._burst_s = max(config.quota_window_num - 1, 1) * self._sample_s
        self._mutation_burst_s = config.controller_quota_window_num * config.controller_quota_window_size_seconds
        self._buckets: dict[tuple[str, str, str], TokenBucket] = {}
        self._matches: dict[tuple[str, str, str], Match | None] = {}
        self._quotas = image.quotas
        self.is_active = bool(image.quotas)

    def follow(self, _before: ClusterImage, after: ClusterImage, _records: Sequence[MetadataRecord]) -> None:
        """Apply changed quotas, without resetting the measured rates."""
        if after.quotas is not self._quotas:
            self._quotas, self._matches = after.quotas, {}
            self.is_active = bool(after.quotas)

    def produced(self, session: ClientSession, size_bytes: int, now_s: float) -> None:
        """Count bytes that the client has sent, and throttle it if they are too many."""
        self._record(PRODUCER_BYTE_RATE, session, size_bytes, now_s)

    def fetched(self, session: ClientSession, size_bytes: int, now_s: float) -> bool:
        """Count bytes that the client is to get; return False, without counting, if it must wait for them."""
        match = self._match(CONSUMER_BYTE_RATE, session)
        if match is None:
            return True
        burst = match.quota * self._burst_s
        bucket = self._bucket(match.rate_key, burst, now_s)
        if bucket.take(size_bytes, match.quota, burst, now_s):
            return True
        self._throttle(session, bucket.delay_s(match.quota, burst, now_s), now_s)
        return False

    def fetch_bytes_max(self, session: ClientSession) -> float | None:
        """Return the maximum bytes of one fetch response of the client: what its quota allows in a whole window."""
        match = self._match(CONSUMER_BYTE_RATE, session)
        return None if match is None else max(match.quota * self._burst_s, 1)

    def handled(self, session: ClientSession, took_s: float, now_s: float) -> None:
        """Count time that the client's requests have taken on the event loop, in percent of a second."""
        self._record(REQUEST_PERCENTAGE, session, took_s * 100, now_s, delay_s_max=self._sample_s)

    def may_change(self, session: ClientSession, count: int, now_s: float, *, is_strict: bool) -> bool:
        """Count partitions that the client is to create or delete, and throttle it if they are too many.

        A strict quota refuses a client that must wait: the result is False, and nothing is counted.
        """
        match = self._match(CONTROLLER_MUTATION_RATE, session)
        if match is None:
            return True
        burst = match.quota * self._mutation_burst_s
        bucket = self._bucket(match.rate_key, burst, now_s)
        is_taken = bucket.take(count, match.quota, burst, now_s, may_owe=not is_strict)
        self._throttle(session, bucket.delay_s(match.quota, burst, now_s), now_s)
        return is_taken

    def connection_rate(self, host: str) -> float | None:
        """Return how many connections per second an address may make, or None if there is no limit."""
        for name in (host, None):
            values = self._quotas.get(((IP, name),))
            if values is not None and CONNECTION_CREATION_RATE in values:
                return values[CONNECTION_CREATION_RATE]
        return None

    def _record(
        self, key: str, session: ClientSession, value: float, now_s: float, delay_s_max: float | None = None
    ) -> None:
        match = self._match(key, session)
        if match is None:
            return
        burst = match.quota * self._burst_s
        bucket = self._bucket(match.rate_key, burst, now_s)
        bucket.take(value, match.quota, burst, now_s, may_owe=True)
        delay_s = bucket.delay_s(match.quota, burst, now_s)
        self._throttle(session, delay_s if delay_s_max is None else min(delay_s, delay_s_max), now_s)

    def _throttle(self, session: ClientSession, delay_s: float, now_s: float) -> None:
        if delay_s > 0:
            session.throttle(now_s, int(delay_s * 1000) + 1)

    def _bucket(self, rate_key: tuple[str, str, str], burst: float, now_s: float) -> TokenBucket:
        bucket = self._buckets.pop(rate_key, None)
        if bucket is None:
            bucket = TokenBucket(burst, now_s)
            if len(self._buckets) >= RATES_MAX:
                self._buckets.pop(next(iter(self._buckets)))
        self._buckets[rate_key] = bucket  # the most recently used one is the last
        return bucket

    def _match(self, key: str, session: ClientSession) -> Match | None:
        """Return the quota of the session's user and client id."""
        user, client_id = session.principal.name, session.client_id or ""
        asked = (key, user, client_id)
        try:
            return self._matches[asked]
        except KeyError:
            if len(self._matches) >= MATCHES_MAX:
                self._matches = {}
            match = self._matches[asked] = self._search(key, user, client_id)
            return match

    def _search(self, key: str, user: str, client_id: str) -> Match | None:
        both, only_user, only_client = (key, user, client_id), (key, user, _NO_ENTITY), (key, _NO_ENTITY, client_id)
        candidates: tuple[tuple[QuotaEntity, tuple[str, str, str]], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), only_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), only_user),
            (((CLIENT_ID, client_id),), only_client),
            (((CLIENT_ID, None),), only_client),
        )
        for entity, rate_key in candidates:
            values = self._quotas.get(entity)
            if values is not None and key in values:
                return Match(values[key], rate_key)
        return None
