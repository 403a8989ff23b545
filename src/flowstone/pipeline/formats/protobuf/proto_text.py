"""The names of the messages of a .proto file: what is needed of it to tell which message a frame's indexes name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[\w.]+|[^\s\w]', re.DOTALL)
DEPTH_MAX = 64


@dataclass
class _Scope:
    name: str
    messages: list[_Scope] = field(default_factory=list)


def message_at(text: str, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message that the indexes of a frame name, or None if there is none."""
    package, scope = _outline(text)
    names = [package] if package else []
    for index in indexes:
        if not 0 <= index < len(scope.messages):
            return None
        scope = scope.messages[index]
        names.append(scope.name)
    return ".".join(names)


def _outline(text: str) -> tuple[str, _Scope]:
    """Return the package, and the messages in the order of the file. Other blocks hold no messages."""
    package, top = "", _Scope("")
    open_: list[_Scope] = [top]
    words: list[str] = []  # since the last ; { or }
    for token in _tokens(text):
        if token == "{":
            inner = _Scope(words[1] if len(words) == 2 and words[0] == "message" else "")
            if inner.name and len(open_) <= DEPTH_MAX:
                open_[-1].messages.append(inner)
            open_.append(inner)
        elif token == "}" and len(open_) > 1:
            open_.pop()
        elif token == ";" and len(words) == 2 and words[0] == "package":
            package = words[1]
        words = [] if token in "{};" else [*words[-8:], token]
    return package, top


def _tokens(text: str) -> Iterator[str]:
    for found in _TOKEN.finditer(text):
        token = found[0]
        if not token.startswith(("//", "/*")):
            yield "string" if token[0] in "\"'" else token
