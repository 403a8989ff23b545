"""Requests counted against the quotas of their clients: the bytes of produces, and the time on the event loop.

Requests that brokers send each other have no quota.
"""

from __future__ import annotations

from typing import Any

from flowstone.broker.quotas.client_quotas import ClientQuotas
from flowstone.broker.requests.session import ClientSession

PRODUCE_KEY, FETCH_KEY = 0, 1
# WriteTxnMarkers, and the requests about the state of share groups.
_BROKERS_KEYS = frozenset((27, 83, 84, 85, 86, 87))


def count_request(
    quotas: ClientQuotas,
    api_key: int,
    request: Any,
    session: ClientSession,
    size_bytes: int,
    took_s: float,
    now_s: float,
) -> None:
    """Count a request that was handled; the session is throttled if its client is over a quota."""
    if api_key == PRODUCE_KEY:
        quotas.produced(session, size_bytes, now_s)
    elif api_key == FETCH_KEY and (request.replica_id >= 0 or _is_replicas(request.replica_state)):
        return
    count_time(quotas, api_key, session, took_s, now_s)


def count_time(quotas: ClientQuotas, api_key: int, session: ClientSession, took_s: float, now_s: float) -> None:
    if api_key not in _BROKERS_KEYS:
        quotas.handled(session, took_s, now_s)


def _is_replicas(replica_state: Any) -> bool:
    return replica_state is not None and bool(replica_state.replica_id >= 0)
