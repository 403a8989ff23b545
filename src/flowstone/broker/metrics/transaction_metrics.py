"""The metrics of the transactions that this broker coordinates, and of those that hang in partitions that it leads.

Read from the shards of the coordinator at each scrape. No labels: transactional ids are named by clients.
"""

from __future__ import annotations

from flowstone.broker.coordinators.transaction_coordinator import TransactionCoordinator
from flowstone.broker.metrics.exposition import Exposition, label_text


def write_transactions(page: Exposition, coordinator: TransactionCoordinator, late_count: int, now_ms: int) -> None:
    shards = coordinator.open_transactions()
    open_by_state = {
        label_text(state="ongoing"): sum(each.ongoing for each in shards),
        label_text(state="ending"): sum(each.ending for each in shards),
    }
    starts = [each.oldest_start_ms for each in shards if each.oldest_start_ms is not None]
    page.gauge("flowstone_transactions_open", "Transactions this broker coordinates, not complete.", open_by_state)
    page.gauge(
        "flowstone_transaction_oldest_seconds",
        "Age of the oldest of them; 0 if there is none.",
        max(now_ms - min(starts), 0) / 1000 if starts else 0.0,
    )
    counts = coordinator.counts
    page.counter("flowstone_transactions_committed_total", "Transactions decided to be committed.", counts.committed)
    page.counter("flowstone_transactions_aborted_total", "Transactions decided to be aborted.", counts.aborted)
    page.counter(
        "flowstone_transactions_timed_out_total",
        "Transactions aborted because the producer did not end them in time; also counted as aborted.",
        counts.timed_out,
    )
    memory = coordinator.memory
    page.gauge("flowstone_transaction_memory_bytes", "Memory that all transactional ids take.", memory.used_bytes)
    page.counter(
        "flowstone_transaction_memory_refusals_total",
        "Transactional ids and partitions refused because of transaction.memory.max.bytes.",
        memory.refused_count,
    )
    page.gauge(
        "flowstone_late_transaction_partitions",
        "Led partitions whose oldest open transaction is older than any may be: nothing will end it.",
        late_count,
    )
