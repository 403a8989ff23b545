"""Times as people give them on a command line."""

from __future__ import annotations

from datetime import datetime

from flowstone.cli.errors import CommandError


def parse_time(option: str, text: str) -> int:
    """Milliseconds since 1970; a time without a zone is local."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise CommandError(
            f"{option} {text}: expected milliseconds since 1970 or a time such as 2026-01-31T12:00:00+00:00"
        ) from None
