"""Generator of the settings tables in docs/configuration.md from `config`.

    python -m flowstone.cli.up.settings_table docs/configuration.md [--check]

Replaces the text between the two marks of the page; --check only compares it, for the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from flowstone.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    INT_MAX,
    LONG_MAX,
    SETTINGS_WITHOUT_EFFECT,
    TOPIC_SETTINGS,
    Kind,
    Setting,
)

BEGIN_MARK = "<!-- settings: generated from the config package -->"
END_MARK = "<!-- end of settings -->"
_KINDS = {
    Kind.BOOLEAN: "true or false",
    Kind.STRING: "text",
    Kind.INT: "int",
    Kind.SHORT: "short",
    Kind.LONG: "long",
    Kind.DOUBLE: "number",
    Kind.LIST: "list",
    Kind.CLASS: "Java class",
    Kind.PASSWORD: "secret text",
}
_LARGEST = {LONG_MAX: "2^63-1", INT_MAX: "2^31-1"}


def render() -> str:
    return "\n".join(
        [
            BEGIN_MARK,
            "### Broker settings",
            "",
            *_table(each for each in BROKER_SETTINGS.values() if each.has_effect),
            "",
            "### Topic settings",
            "",
            *_table(TOPIC_SETTINGS.values()),
            "",
            "### Group settings",
            "",
            *_table(GROUP_SETTINGS.values()),
            "",
            "### Broker settings of Kafka without effect",
            "",
            "Those marked with * can be changed while the broker runs.",
            "",
            *_table(SETTINGS_WITHOUT_EFFECT.values()),
            END_MARK,
        ]
    )


def update(page: str) -> str:
    """Return the page with the current tables."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _old, end, after = rest.partition(END_MARK)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN_MARK} or {END_MARK}")
    return before + render() + after


def _table(settings: Iterable[Setting]) -> list[str]:
    rows = [
        f"| `{each.name}`{_mark(each)} | {_values(each)} | {_default(each)} | {_meaning(each)} |" for each in settings
    ]
    return ["| setting | value | default | meaning |", "|---|---|---|---|", *rows]


def _mark(setting: Setting) -> str:
    return "" if setting.has_effect or setting.read_only or setting.name in TOPIC_SETTINGS else " *"


def _values(setting: Setting) -> str:
    if setting.choices and setting.kind is not Kind.CLASS:
        return ", ".join(each or "empty" for each in setting.choices)
    kind = _KINDS[setting.kind]
    if setting.low is not None and setting.high is not None:
        return f"{kind}, {setting.low} to {setting.high}"
    return f"{kind}, {setting.low} or more" if setting.low is not None else kind


def _default(setting: Setting) -> str:
    if isinstance(setting.default, int) and setting.default in _LARGEST:
        return _LARGEST[setting.default]
    text = setting.format(setting.default)
    return f"`{text}`" if text else ""


def _meaning(setting: Setting) -> str:
    others = [f"`{name}`" for name, _factor in setting.broker_names if name != setting.name]
    return setting.doc + (f" For all {_owners(setting)} also: {', '.join(others)}." if others else "")


def _owners(setting: Setting) -> str:
    return "groups" if setting.name in GROUP_SETTINGS else "topics"


def main(arguments: list[str]) -> int:
    path = Path(arguments[0])
    page = path.read_text(encoding="utf-8")
    updated = update(page)
    if "--check" in arguments:
        return int(page != updated)
    path.write_text(updated, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
