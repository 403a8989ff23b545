"""Text scenarios: commands, each followed by the trace it must leave.

A file holds scenarios that begin with `=== a sentence`. Commands begin with `>`; the lines after one are its trace;
lines with `#` are for people. What a command does is an interpreter's business; each scenario has a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import pytest


class Interpreter(Protocol):
    def run(self, command: str, /) -> Iterable[str]:
        """The trace it leaves."""
        ...


class Scenarios:
    def __init__(self, directory: Path, new_interpreter: Callable[[], Interpreter]) -> None:
        self._paths = sorted(directory.glob("*.txt"))
        self._new_interpreter = new_interpreter

    def cases(self) -> list[object]:
        """For `parametrize`: the lines of each scenario."""
        return [
            pytest.param(lines, id=f"{path.stem}: {title}")
            for path in self._paths
            for title, lines in _read(path).items()
        ]

    def run(self, lines: list[str]) -> list[str]:
        """The scenario's lines as they happen."""
        interpreter = self._new_interpreter()
        actual: list[str] = []
        for line in lines:
            if line.startswith(">"):
                actual += [line, *interpreter.run(line[1:])]
            elif line.startswith("#") or not line:
                actual.append(line)
        return actual

    def rewrite(self) -> None:
        """Writes the traces that happen into the files, to be read before they are committed."""
        for path in self._paths:
            head = path.read_text().split("===")[0]
            blocks = (f"=== {title}\n" + "\n".join(self.run(lines)) for title, lines in _read(path).items())
            path.write_text(head + "\n".join(blocks).rstrip("\n") + "\n")


def _read(path: Path) -> dict[str, list[str]]:
    scenarios: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text().splitlines():
        if line.startswith("==="):
            title = line[3:].strip()
            assert title not in scenarios, f"{path.name} has two scenarios called {title!r}"
            scenarios[title] = []
        elif title:
            scenarios[title].append(line)
    return scenarios
