"""Parser and writer of Kafka's .properties files.

The format is Java's: `name=value`, `name: value` or `name value`; `#` and `!` start a comment; a backslash joins a line
with the next one or escapes a character. The file is read as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flowstone.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
# The name ends at the first unescaped blank, '=' or ':'; one of the two may follow the blanks.
_LINE = re.compile(r"(?P<name>(?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Return the settings in a file; `source` names it in errors. The last of repeated names counts, as in Java."""
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        name = _unescape(match["name"]) if match else ""
        if not match or not name:
            raise ConfigError(f"{source}, line {number}: expected name=value, found {line!r}")
        values[name] = _unescape(match["value"])
    return values


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines without comments and blanks, with continuations joined, and each one's line number."""
    lines: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(_BLANKS)
        if begun is None and (not line or line[0] in "#!"):
            continue
        first, before = begun or (number, "")
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            begun = (first, before + line[:-1])
        else:
            begun = None
            lines.append((first, before + line))
    if begun is not None:
        lines.append(begun)
    return lines


def _unescape(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        return _ESCAPES.get(escaped, escaped)

    return _ESCAPE.sub(character, text)


def format_properties(values: Mapping[str, str]) -> str:
    """Return the text of a file with these settings, whose names need no escapes."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + text if text[:1] in (" ", "\f") else text
