"""Settings of the transaction coordinator, and limits that cannot be changed."""

from __future__ import annotations

from dataclasses import dataclass

PARTITIONS_PER_TRANSACTION_MAX = 10_000
"""Each added partition stores all partitions of the transaction again, in one record."""

RECORD_BYTES_MAX = 3 << 20
"""The largest record of a transaction: 10,000 partitions of as many topics with the longest names. The topic's
max.message.bytes must hold it."""

TRANSACTIONAL_ID_OVERHEAD_BYTES = 1_536
PARTITION_BYTES = 512
TEXT_CHARACTER_BYTES = 4
"""What a transactional id, a partition of its transaction with the longest topic name, and a character of the id take
in memory at most. `MemoryBudget` limits the sum over all ids."""

TRANSACTIONS_PER_SLICE = 1_000
"""Transactions looked at in one go by the scans and by ListTransactions, so that a large shard does not hold up the
loop."""

SLICE_PAUSE_MS = 10
"""Between two such goes."""

LISTINGS_WAITING_MAX = 100
"""Requests of ListTransactions that wait for one that takes several slices."""

MARKERS_RETRY_MS = 30_000
"""Markers that a partition's leader refused as fenced are sent again after this long, if this shard is still here."""

PATTERN_CHARACTERS_MAX = 256
PATTERN_TEXT_CHARACTERS_MAX = 500
PATTERN_STATES_MAX = 500
PATTERN_STEPS_MAX = 500
PATTERN_WORK_PER_SLICE = 50_000
"""The longest pattern of ListTransactions, the longest transactional id that it can match, the states of its automaton
(`x{100}` takes 301), the steps between sets of them that are remembered, and how many states are followed in one go."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The coordinator's settings, with the meaning and the defaults of Kafka's settings."""

    transaction_max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000  # transactional.id.expiration.ms
    # transaction.abort.timed.out.transaction.cleanup.interval.ms
    abort_timed_out_interval_ms: int = 10_000
    # transaction.remove.expired.transaction.cleanup.interval.ms
    remove_expired_interval_ms: int = 3_600_000
