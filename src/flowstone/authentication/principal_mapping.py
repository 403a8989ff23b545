"""Kafka's `ssl.principal.mapping.rules`: from the distinguished name of a certificate to a user's name."""

from __future__ import annotations

import re
from typing import NamedTuple

from flowstone.errors import ConfigError

# The form of one rule. A slash in the pattern or in the replacement is written \/.
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<new>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
)
_GROUP = re.compile(r"\$(\d)")
DISTINGUISHED_NAME_CHARACTERS_MAX = 2048


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: the whole name
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        result = _GROUP.sub(lambda group: _group(match, int(group[1])), self.replacement)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)


def _group(match: re.Match[str], number: int) -> str:
    return (match[number] or "") if number <= len(match.groups()) else ""


class PrincipalMapping:
    """Rules in the order in which they are tried."""

    def __init__(self, text: str) -> None:
        """Parse the rules. Raises ConfigError."""
        self._rules: list[_Rule] = []
        at = 0
        text = text.strip() or "DEFAULT"
        while at < len(text):
            match = _RULE.match(text, at)
            end = match.end() if match else at
            separator = re.compile(r"\s*(,|$)").match(text, end)
            if match is None or separator is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {text[at:]!r} is no rule: expected DEFAULT, or "
                    "RULE:pattern/replacement/ with an L or U after it"
                )
            self._rules.append(_parsed(match))
            at = separator.end()

    def user_of(self, distinguished_name: str) -> str | None:
        """Return the user's name, or None if no rule matches."""
        if len(distinguished_name) > DISTINGUISHED_NAME_CHARACTERS_MAX:
            return None
        for rule in self._rules:
            user = rule.apply(distinguished_name)
            if user:
                return user
        return None


def _parsed(match: re.Match[str]) -> _Rule:
    if match["default"]:
        return _Rule(None, "", "")
    try:
        pattern = re.compile(match["pattern"].replace("\\/", "/"))
    except re.error as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {match['pattern']!r} is no pattern: {error}") from None
    return _Rule(pattern, match["new"].replace("\\/", "/"), match["case"])
