"""Limits on the number of clients' connections and on the rate of new ones.

`max.connections.per.ip`, with `max.connections.per.ip.overrides` for single addresses, and the quota
`connection_creation_rate` of an address, refuse a connection. `max.connection.creation.rate` delays all of them: the
listeners accept none for a while, and connections wait in the system's queue.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.broker.quotas.client_quotas import ClientQuotas
from flowstone.broker.quotas.token_bucket import TokenBucket
from flowstone.cluster.decisions.authorizer import canonical_host
from flowstone.config import BrokerConfig
from flowstone.errors import ConfigError

# Addresses whose rates are known; the least recently seen one begins anew.
ADDRESSES_MAX = 10_000


class ConnectionLimits:
    def __init__(self, config: BrokerConfig, quotas: ClientQuotas, monotonic: Callable[[], float]) -> None:
        """Create the limits. Raises ConfigError if max.connections.per.ip.overrides is invalid."""
        self.configure(config)
        self._quotas, self._monotonic = quotas, monotonic
        self._by_address: dict[str, TokenBucket] = {}
        self._bucket = TokenBucket(self._rate, monotonic())

    def configure(self, config: BrokerConfig) -> None:
        """Apply altered settings; connections that exist stay. Raises ConfigError as the constructor does."""
        self._per_ip = config.max_connections_per_ip
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)
        self._rate = config.max_connection_creation_rate

    def refusal(self, host: str, connection_count: int) -> str | None:
        """Return why a connection is refused, by the name of the setting or quota, or None.

        `connection_count` is how many the address has.
        """
        limit = self._per_ip
        if self._overrides:
            limit = self._overrides.get(canonical_host(host), limit)
        if connection_count >= limit:
            return "max.connections.per.ip is reached"
        if self._quotas.is_active and not self._may_create(canonical_host(host)):
            return "the quota connection_creation_rate of its address is exceeded"
        return None

    def rest_s(self) -> float:
        """Count a connection, and return for how long the listeners should accept no further ones."""
        now_s = self._monotonic()
        self._bucket.take(1, self._rate, self._rate, now_s, may_owe=True)
        return self._bucket.delay_s(self._rate, self._rate, now_s)

    def _may_create(self, host: str) -> bool:
        quota = self._quotas.connection_rate(host)
        if quota is None:
            return True
        if quota <= 0:
            return False
        now_s, burst = self._monotonic(), max(quota, 1.0) - 1
        bucket = self._by_address.pop(host, None)
        if bucket is None:
            bucket = TokenBucket(burst, now_s)
            if len(self._by_address) >= ADDRESSES_MAX:
                self._by_address.pop(next(iter(self._by_address)))
        self._by_address[host] = bucket
        return bucket.take(1, quota, burst, now_s)


def parse_overrides(pairs: tuple[str, ...]) -> dict[str, int]:
    """Return the limits by address. Raises ConfigError if a pair is not ADDRESS:COUNT."""
    overrides = {}
    for pair in pairs:
        host, _, count = pair.rpartition(":")
        if not host or not count.isdecimal():
            raise ConfigError(f"max.connections.per.ip.overrides: {pair!r} is not ADDRESS:COUNT, such as 10.0.0.7:100")
        overrides[canonical_host(host)] = int(count)
    return overrides
