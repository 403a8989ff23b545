"""Limits on new idempotent producers, so that a flood of made-up producer ids harms only its sender.

Every partition remembers the producers that write to it (`log.producer_state`) and evicts none that is active, so one
client must not use up the capacity for new ones. Owns three token buckets: new ids of a connection, new ids of a client
address, and new table entries (an id in a partition) of an address. Each begins full and is refilled at a steady rate.
The number of ids from one address, before its first entries are idle, is less than a partition's table holds, and the
number of its entries is less than all tables together hold. A producer that its partition knows is not counted.

A refused producer gets an error that clients retry. While its connection has just been refused, a new producer may
begin only with sequence 0: otherwise the second of its requests could be stored without the first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from struct import Struct

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.producers.producer_state import PRODUCER_IDLE_MS
from flowstone.ports.clock import Clock
from flowstone.types import Bytes
from flowstone.wire.record_batch import HEADER_BYTES, parse_header

logger = logging.getLogger(__name__)

PRODUCERS_TOTAL_MAX = 500_000  # over all partitions; one takes about 400 bytes
CONNECTION_NEW_IDS_MAX, CONNECTION_NEW_IDS_PER_S = 1_000, 10
ADDRESS_NEW_IDS_MAX, ADDRESS_NEW_IDS_PER_S = 10_000, 100
ADDRESS_NEW_ENTRIES_MAX, ADDRESS_NEW_ENTRIES_PER_S = 100_000, 200
ALLOWANCES_MAX = 20_000  # connections and addresses with buckets; the least recently used one is evicted
GAP_AFTER_REFUSAL_S = 10.0  # how long requests that were sent after a refused one may still be in flight
TOTAL_COUNT_INTERVAL_S = 1.0
WARNING_INTERVAL_S = 60.0
_PRODUCER_ID, _PRODUCER_ID_POSITION = Struct(">q"), 43  # in a record batch


class Allowance:
    """A token bucket: tokens are taken one by one and refilled at a steady rate."""

    __slots__ = ("_at_s", "_left", "_most", "_per_s", "last_id", "refused_s")

    def __init__(self, most: int, per_s: int, now_s: float) -> None:
        self._most, self._per_s = most, per_s
        self._left, self._at_s = float(most), now_s
        self.last_id = -1  # the last producer that was counted
        self.refused_s = -GAP_AFTER_REFUSAL_S

    def has_any(self, now_s: float) -> bool:
        """Return whether a token is left at this time."""
        self._left = min(self._left + (now_s - self._at_s) * self._per_s, self._most)
        self._at_s = now_s
        return self._left >= 1

    def use(self) -> None:
        self._left -= 1


class ProducerAdmission:
    def __init__(self, clock: Clock, all_logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._clock, self._all_logs = clock, all_logs
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()
        self._total, self._counted_s = 0, -TOTAL_COUNT_INTERVAL_S
        self._warned_s = -WARNING_INTERVAL_S

    def check(self, log: PartitionLog, records: Bytes, peer: str) -> None:
        """Count the batch's producer if the log does not know it. Raises ApiError if that exceeds a limit."""
        if len(records) < HEADER_BYTES:
            return  # not a batch: the log refuses it
        (producer_id,) = _PRODUCER_ID.unpack_from(records, _PRODUCER_ID_POSITION)
        if producer_id < 0 or log.producers.get(producer_id) is not None:
            return
        now_s = self._clock.monotonic()
        connection = self._take_id(producer_id, peer, now_s)
        if now_s - connection.refused_s < GAP_AFTER_REFUSAL_S and parse_header(records).base_sequence > 0:
            raise self._refusal(connection, peer, "a request that its producer sent before was refused", now_s)
        name = f"entries {_address(peer)}"
        entries = self._allowance(name, ADDRESS_NEW_ENTRIES_MAX, ADDRESS_NEW_ENTRIES_PER_S, now_s)
        if not entries.has_any(now_s):
            why = f"more than {ADDRESS_NEW_ENTRIES_PER_S} new producers and partitions a second came from its address"
            raise self._refusal(connection, peer, why, now_s)
        if self._count(now_s) >= PRODUCERS_TOTAL_MAX:
            why = f"the broker remembers {self._total} producers, its maximum, and none of them is idle"
            raise self._refusal(connection, peer, why, now_s)
        entries.use()
        self._total += 1

    def check_new_id(self, peer: str) -> None:
        """Raise ApiError if this connection or its address has been given too many producer ids."""
        self._take_id(-1, peer, self._clock.monotonic())

    def _take_id(self, producer_id: int, peer: str, now_s: float) -> Allowance:
        """Count a new producer id; return its connection's allowance. One id in many partitions counts once."""
        connection = self._allowance(peer, CONNECTION_NEW_IDS_MAX, CONNECTION_NEW_IDS_PER_S, now_s)
        if connection.last_id == producer_id >= 0:
            return connection
        if not connection.has_any(now_s):
            why = f"more than {CONNECTION_NEW_IDS_PER_S} new producer ids a second came over its connection"
            raise self._refusal(connection, peer, why, now_s)
        address = self._allowance(_address(peer), ADDRESS_NEW_IDS_MAX, ADDRESS_NEW_IDS_PER_S, now_s)
        if not address.has_any(now_s):
            why = f"more than {ADDRESS_NEW_IDS_PER_S} new producer ids a second came from its address"
            raise self._refusal(connection, peer, why, now_s)
        connection.use()
        address.use()
        connection.last_id = producer_id
        return connection

    def _allowance(self, name: str, most: int, per_s: int, now_s: float) -> Allowance:
        allowance = self._allowances.get(name)
        if allowance is None:
            allowance = self._allowances[name] = Allowance(most, per_s, now_s)
            if len(self._allowances) > ALLOWANCES_MAX:
                self._allowances.popitem(last=False)
        self._allowances.move_to_end(name)
        return allowance

    def _count(self, now_s: float) -> int:
        """Return the number of producers in all partitions, as of a second ago; at the limit, evict idle ones."""
        if now_s - self._counted_s >= TOTAL_COUNT_INTERVAL_S:
            self._counted_s = now_s
            self._total = sum(len(log.producers) for log in self._all_logs())
            if self._total >= PRODUCERS_TOTAL_MAX:
                now_ms = self._clock.time_ms()
                for log in self._all_logs():
                    log.producers.expire(now_ms, PRODUCER_IDLE_MS)
                self._total = sum(len(log.producers) for log in self._all_logs())
        return self._total

    def _refusal(self, connection: Allowance, peer: str, why: str, now_s: float) -> ApiError:
        connection.refused_s = now_s
        if now_s - self._warned_s >= WARNING_INTERVAL_S:
            self._warned_s = now_s
            logger.warning("new idempotent producers of %s are refused for now: %s", peer, why)
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"a new producer is refused for now: {why}")


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]
