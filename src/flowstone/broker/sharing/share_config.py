"""The settings of a share partition's group that its state machine needs."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.config import GroupSettings


class ShareConfig(NamedTuple):
    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    # Bounds the window: all offsets from the first unfinished record on.
    window_max: int = 2000
    may_renew: bool = True
    backoff_ms: int = 0
    backoff_max_ms: int = 60_000
    # With key ordering, the window's bound; `window_max` then limits the records in delivery.
    lookahead: int = 100_000
    # Whether records that are rejected or delivered too often are copied to a dead letter queue.
    has_dead_letters: bool = False

    @property
    def delayed_window_max(self) -> int:
        """Return the bound of the window while records in it wait for their time."""
        return 10 * self.window_max

    def backoff(self, delivery_count: int) -> int:
        """Return for how long a record waits after so many deliveries, in milliseconds."""
        if not self.backoff_ms or not delivery_count:
            return 0
        return min(self.backoff_ms << min(delivery_count - 1, 30), self.backoff_max_ms)

    @property
    def pieces_from(self) -> int:
        """Return from which delivery count on records that were delivered together are delivered in pieces."""
        return max(2, -(-self.delivery_count_limit // 2))


def share_config(settings: GroupSettings) -> ShareConfig:
    return ShareConfig(
        settings.share_record_lock_duration_ms,
        settings.share_delivery_count_limit,
        settings.share_partition_max_record_locks,
        settings.share_renew_acknowledge_enable,
        settings.share_redelivery_backoff_ms,
        settings.share_redelivery_backoff_max_ms,
        settings.share_lookahead,
        bool(settings.errors_deadletterqueue_topic_name),
    )
