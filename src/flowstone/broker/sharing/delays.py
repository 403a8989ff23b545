"""The record header `flowstone.deliver-after`: the time before which share groups do not deliver a record.

Its value is the milliseconds since the epoch, in decimal digits. A value that is no such number delays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

DELIVER_AFTER = "flowstone.deliver-after"
DELIVER_AFTER_BYTES = DELIVER_AFTER.encode()
_DIGITS_MAX = 18


def not_before_ms(headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the time of a record's header, or 0 if it has none."""
    for name, value in headers:
        if name == DELIVER_AFTER and value is not None and len(value) <= _DIGITS_MAX and value.isdigit():
            return int(value)
    return 0
