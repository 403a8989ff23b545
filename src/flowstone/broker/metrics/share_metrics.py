"""The metrics of share groups on this broker. They have no labels, because clients name groups."""

from __future__ import annotations

from flowstone.broker.metrics.exposition import Exposition
from flowstone.broker.sharing.share_partitions import SharePartitions


def write_sharing(page: Exposition, sharing: SharePartitions) -> None:
    counts = sharing.counts
    page.gauge(
        "flowstone_share_sessions", "Members of share groups that fetch from this broker.", len(sharing.sessions)
    )
    page.gauge("flowstone_share_partitions", "Share partitions that are loaded.", len(sharing))
    page.counter("flowstone_share_deliveries_total", "Records delivered to members of share groups.", counts.deliveries)
    page.counter(
        "flowstone_share_redeliveries_total",
        "Those of them that had been delivered before.",
        counts.redeliveries,
    )
    page.counter("flowstone_share_acknowledgements_total", "Records acknowledged by members.", counts.acknowledgements)
    page.counter(
        "flowstone_share_dead_letters_total",
        "Records archived because they were rejected or delivered too often, in groups with a dead letter queue.",
        counts.dead_letters,
    )
    page.counter(
        "flowstone_share_failed_writes_total",
        "Changes of share partitions that the share coordinator did not store, and that were rolled back.",
        counts.failed_writes,
    )
