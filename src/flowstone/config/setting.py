"""Description of one setting (name, type, default, bounds, text), and the conversion of its values from text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from flowstone.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Value = bool | int | float | str | tuple[str, ...]


class Kind(IntEnum):
    """The types of settings, with the numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9  # never shown


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: Value | None  # None: no value, which clients see as null
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    excluded: tuple[int, ...] = ()  # numbers within the bounds that are not allowed
    # Kafka's broker-wide names for a topic setting, first one wins, each with its factor to this setting's unit.
    broker_names: tuple[tuple[str, int], ...] = ()
    read_only: bool = True
    pattern: str = ""  # a regular expression that each part of a list must match
    has_effect: bool = True  # False: Kafka's setting is stored and shown, and changes nothing here
    is_hidden: bool = False  # a setting that Kafka accepts and shows to nobody
    per_broker: bool = False  # cannot be changed for all brokers together
    can_be_empty: bool = False  # of a list with `choices`
    any_case: bool = False  # a value may write its choice in any case

    @property
    def is_sensitive(self) -> bool:
        """Return whether values are secrets, which no response, page, log or error shows."""
        return self.kind is Kind.PASSWORD

    @property
    def broker_wide_names(self) -> tuple[tuple[str, int], ...]:
        """The names under which a broker sets the default of a topic setting: Kafka's, or the setting's own."""
        return self.broker_names or ((self.name, 1),)

    def parse(self, text: str) -> Value:
        text = text.strip()
        try:
            value = self._convert(text)
        except ValueError:
            raise ConfigError(f"{self.name}: {text!r} is not {_ARTICLES[self.kind]}") from None
        self._check(value)
        return value

    def format(self, value: Value | None) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _convert(self, text: str) -> Value:
        match self.kind:
            case Kind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ValueError(text)
                return text.lower() == "true"
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return int(text)
            case Kind.DOUBLE:
                return float(text)
            case Kind.LIST:
                return self._parts(text)
            case Kind.STRING | Kind.PASSWORD | Kind.CLASS:
                return self._choice(text) if self.any_case else text

    def _parts(self, text: str) -> tuple[str, ...]:
        parts = [part.strip() for part in text.split(",")]
        if self.choices and text and not all(parts):
            raise ConfigError(f"{self.name}: {text!r} has an empty item between its commas")
        parts = list(filter(None, parts))
        return tuple(dict.fromkeys(parts)) if self.choices else tuple(parts)

    def _choice(self, text: str) -> str:
        return next((each for each in self.choices if each.lower() == text.lower()), text)

    def _check(self, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.low if self.low is not None else _LOWEST.get(self.kind)
            high = self.high if self.high is not None else _HIGHEST.get(self.kind)
            if low is not None and value < low:
                raise ConfigError(f"{self.name}: {value} is below the minimum, {low}")
            if high is not None and value > high:
                raise ConfigError(f"{self.name}: {value} is above the maximum, {high}")
            if value in self.excluded:
                raise ConfigError(f"{self.name}: {value} is not an allowed value")
        if self.pattern and isinstance(value, tuple):
            for item in value:
                if not re.fullmatch(self.pattern, item):
                    raise ConfigError(f"{self.name}: {item!r} does not match {self.pattern}")
        if self.choices:
            self._check_choices(value)

    def _check_choices(self, value: Value) -> None:
        for part in value if isinstance(value, tuple) else (value,):
            if part not in self.choices and self.kind is Kind.CLASS:
                raise ConfigError(f"{self.name}: this broker cannot load a Java class: remove the setting")
            if part not in self.choices:
                raise ConfigError(f"{self.name}: {part!r} is not one of {', '.join(filter(None, self.choices))}")
        if value == () and not self.can_be_empty:
            raise ConfigError(f"{self.name}: at least one of {', '.join(self.choices)} is needed")


_ARTICLES = {
    Kind.BOOLEAN: "true or false",
    Kind.STRING: "text",
    Kind.INT: "a whole number",
    Kind.SHORT: "a whole number",
    Kind.LONG: "a whole number",
    Kind.DOUBLE: "a number",
    Kind.LIST: "a list",
    Kind.CLASS: "a class",
    Kind.PASSWORD: "text",
}
_LOWEST = {Kind.SHORT: -(2**15), Kind.INT: -(2**31), Kind.LONG: -(2**63)}
_HIGHEST = {Kind.SHORT: 2**15 - 1, Kind.INT: INT_MAX, Kind.LONG: LONG_MAX}


def broker_setting(name: str, kind: Kind, default: Value | None, doc: str, **more: Any) -> Any:
    setting = Setting(name, kind, default, doc, **more)
    return field(default=default, repr=not setting.is_sensitive, metadata={"setting": setting})


def topic_setting(
    name: str, kind: Kind, default: Value | None, doc: str, *broker_names: str | tuple[str, int], **more: Any
) -> Any:
    synonyms = tuple((each, 1) if isinstance(each, str) else each for each in broker_names)
    return broker_setting(name, kind, default, doc, broker_names=synonyms, read_only=False, **more)
