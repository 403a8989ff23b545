"""Records which functions of this project the threads under observation run, with `sys.setprofile`.

A function counts once however often it runs. Lambdas count. Not counted: comprehensions and generator expressions,
which are read as a part of their function; Python's own functions and those written in C, the native kernel among them;
what is generated from the schemas (message classes, encoders, decoders).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

SOURCE = Path(__file__).parents[2] / "src"
_PREFIX = f"{SOURCE}/"
_GENERATED = f"{SOURCE}/flowstone/wire/messages/generated.py"
_PARTS_OF_A_FUNCTION = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"))


@dataclass(frozen=True, slots=True)
class Walk:
    """The functions that one path runs, in the order of their first calls."""

    name: str
    functions: tuple[CodeType, ...]

    @property
    def files(self) -> dict[str, list[CodeType]]:
        """The functions by file, in the order in which the files are reached first."""
        files: dict[str, list[CodeType]] = {}
        for code in self.functions:
            files.setdefault(code.co_filename.removeprefix(_PREFIX), []).append(code)
        return files

    @property
    def longest(self) -> CodeType:
        return max(self.functions, key=line_count)


class Recorder:
    """The functions run by each thread in which `start` was called, until it calls `stop`."""

    def __init__(self) -> None:
        self._called: dict[CodeType, None] = {}

    def start(self) -> None:
        sys.setprofile(self.hook)

    @staticmethod
    def stop() -> None:
        sys.setprofile(None)

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        code, file = frame.f_code, frame.f_code.co_filename
        if event != "call" or not file.startswith(_PREFIX) or file == _GENERATED:
            return
        if code.co_name not in _PARTS_OF_A_FUNCTION:
            self._called.setdefault(code)

    def take(self) -> list[CodeType]:
        """Return what was recorded since the last call, in order."""
        called, self._called = self._called, {}
        return list(called)


def in_every(rounds: list[list[CodeType]]) -> tuple[CodeType, ...]:
    """Return the functions of the last round that all others ran too, without what a timer ran in one of them."""
    common = set.intersection(*map(set, rounds))
    return tuple(code for code in rounds[-1] if code in common)


def line_count(code: CodeType) -> int:
    """Return how many lines the function has, from its first line (or decorator) to its last statement."""
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno) - code.co_firstlineno + 1
