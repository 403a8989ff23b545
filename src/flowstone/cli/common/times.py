"""Parsing and formatting of times on the command line.

Accepted are milliseconds since 1970, ISO 8601, `now`, `2 hours ago`, `yesterday 09:00`, `today 14:30`, or a time of
today such as `09:00`. A time without a zone is local, with daylight saving time.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from flowstone.cli.common.errors import CommandError

TIME_HELP = "milliseconds since 1970, ISO 8601, '2 hours ago', 'yesterday 09:00'"
TIME_MS_MAX = (1 << 63) - 1  # a timestamp of the protocol
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_ABBREVIATIONS = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week"}
_AGO = re.compile(r"(\d+(?:\.\d+)?|an?)\s*([a-z]+?)s?\s+ago")
_DAY = re.compile(r"(?:(today|yesterday)\s*)?(\d{1,2}:\d{2}(?::\d{2})?)?")
_DAYS_BACK = {"today": 0, "yesterday": 1}


def parse_time(option: str, text: str, now: datetime | None = None) -> int:
    """Return milliseconds since 1970. Raises CommandError if the text is no time or out of range."""
    wanted, now = " ".join(text.lower().split()), now or datetime.now()
    try:
        if text.isdecimal():
            return _checked(int(text))
        found = _relative(wanted, now) or datetime.fromisoformat(text.strip())
        return _checked(int(found.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise CommandError(
            f"{option} {text}: expected milliseconds since 1970, a time such as 2026-01-31T12:00:00+00:00, "
            "'2 hours ago' or 'yesterday 09:00'"
        ) from None


def _checked(time_ms: int) -> int:
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise ValueError(f"not a time that a record can have: {time_ms}")
    return time_ms


def _relative(text: str, now: datetime) -> datetime | None:
    """Return a time relative to `now`, such as `2 hours ago`, or None if the text is none."""
    if text == "now":
        return now
    if match := _AGO.fullmatch(text):
        count, name = match.groups()
        unit = _UNITS.get(_ABBREVIATIONS.get(name, name))
        # Differences are absolute: an hour ago is 60 minutes ago, even across a clock change.
        return now.astimezone() - unit * (1.0 if count[0] == "a" else float(count)) if unit is not None else None
    match = _DAY.fullmatch(text)
    if not text or match is None:
        return None
    day, clock = match.groups()
    on: date = now.date() - timedelta(days=_DAYS_BACK[day or "today"])
    at = (
        time.fromisoformat(clock.zfill(len("00:00") if clock.count(":") == 1 else len("00:00:00"))) if clock else time()
    )
    return datetime.combine(on, at)


def format_time(time_ms: int) -> str:
    """Return a time in the local zone; in milliseconds if it is beyond the year 9999."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # a producer may set any timestamp
        return f"{time_ms} ms"
