"""Parsing of option values: text from Spark as a number, a time, a choice.

The module knows no option by name. Names are case-insensitive, as in Spark. Every `OptionError` is one sentence that
starts with the option's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1}
_BOOLEANS = {"true": True, "false": False}


class OptionError(ValueError):
    """An option is missing, unknown, malformed or contradicts another. The message is one sentence for users."""


class GivenOptions:
    """The given options by lower-case name, with a method to parse each kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._given_names = {name.lower(): name for name in options}

    def names(self) -> Iterable[str]:
        return self._values

    def given_name(self, name: str) -> str:
        """Return a name as the user wrote it. Spark passes names in lower case, so that this is often not known."""
        return self._given_names[name]

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def required(self, name: str, what: str) -> str:
        value = (self.get(name) or "").strip()
        if not value:
            raise OptionError(f"{name}: the source needs it, {what}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return _BOOLEANS[self.one_of(name, tuple(_BOOLEANS), str(default).lower())]

    def one_of(self, name: str, values: tuple[str, ...], default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if value.strip().lower() not in values:
            raise OptionError(f"{name}: {value!r} is none of {', '.join(values)}")
        return value.strip().lower()

    def count(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*0*[1-9]\d*\s*", value, re.ASCII):
            raise OptionError(f"{name}: {value!r} is not a whole number above 0")
        return int(value)

    def duration_ms(self, name: str, default_ms: int) -> int:
        value = self.get(name)
        if value is None:
            return default_ms
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise OptionError(f"{name}: {value!r} is no duration such as 500ms, 30s or 15m")
        return int(match[1]) * _UNIT_MS[match[2]]

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in milliseconds, given as such or in ISO 8601, there in UTC if it names no zone."""
        value = self.get(name)
        if value is None:
            return None
        if re.fullmatch(r"\s*\d+\s*", value, re.ASCII):
            return int(value)
        try:
            time = datetime.fromisoformat(value.strip())
        except ValueError:
            time = None
        if time is None or time.year < EPOCH.year:
            raise OptionError(
                f"{name}: {value!r} is not a time in milliseconds since 1970, nor one such as 2026-11-19T12:00:00Z"
            )
        return max(0, ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1))

    def json(self, name: str) -> Any:
        try:
            return json.loads(self.get(name) or "")
        except ValueError as error:
            raise OptionError(f"{name}: it is not JSON ({error})") from error
