"""Lines of generated Python source code, with their indentation and names of local variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SourceLines:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Indent the lines that are emitted inside the `with` block."""
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """Return a name that begins with `stem` and is used nowhere else in this source."""
        self._names += 1
        return f"{stem}{self._names}"
