"""The times before which share groups do not deliver a record: stored ones, and those of `flowstone.deliver-after`.

The record header's value is the milliseconds since the epoch, in decimal digits. A value that is no such number delays
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.coordinator.share.records import Delay

DELIVER_AFTER = "flowstone.deliver-after"
DELIVER_AFTER_BYTES = DELIVER_AFTER.encode()
_DIGITS_MAX = 18


def not_before_ms(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the time of a record's header, or 0 if it has none."""
    for name, value in headers:
        if name == DELIVER_AFTER and value is not None and len(value) <= _DIGITS_MAX and value.isdigit():
            return int(value)
    return 0


def bounded(delays: Iterable[Delay], latest_ms: int) -> tuple[Delay, ...]:
    """Return stored delays that end at `latest_ms` at the latest.

    They were stored by another leader, whose clock may be ahead: then records would wait for the difference.
    """
    return tuple(Delay(offset, min(not_before_ms, latest_ms)) for offset, not_before_ms in delays)
