"""Which tests run a mutant's line: recorded once for each test module, and kept in `.cache/mutants/lines/`.

A test module is recorded again when its file has changed. When a source file has changed, its recorded lines are
translated to the present ones with the text that was recorded, which is kept in `.cache/mutants/sources/`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypedDict

from tests.mutants.operators import Mutant

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "flowstone"
FOLDER = ROOT / ".cache" / "mutants"
# Of the tests that run a line: how long those may take in sum that are run first, and those that are run if the first
# notice nothing. Others are left out.
FIRST_TESTS_SECONDS_MAX = 25.0
LATER_TESTS_SECONDS_MAX = 75.0


def digest(path: Path) -> str:
    """Return a short digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def file_name(test_module: str) -> str:
    """Return the name of the file about one test module, whose path is relative to the checkout."""
    return test_module.replace("/", "+") + ".json"


class Module(TypedDict):
    """What `lines.py` writes about one test module.

    `lines` has numbers of tests by source file and line, `at_import` the lines that ran before the first test.
    """

    test_file: str
    sources: dict[str, str]
    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]
    at_import: dict[str, list[int]]


@dataclass
class Recording:
    """The tests that run each line of the sources as they are now, and how long each test takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    at_import: set[tuple[str, int]] = field(default_factory=set)

    def add(self, module: Module) -> None:
        """Add what was recorded of one test module."""
        tests = module["tests"]
        self.seconds.update(zip(tests, module["seconds"], strict=True))
        for file, numbers_by_line in module["lines"].items():
            present_line = _translation(file, module["sources"][file])
            for line, numbers in numbers_by_line.items():
                if (present := present_line(int(line))) is not None:
                    self.lines.setdefault((file, present), set()).update(tests[number] for number in numbers)
            ran = map(present_line, module["at_import"][file])
            self.at_import.update((file, line) for line in ran if line is not None)

    def is_imported(self, mutant: Mutant) -> bool:
        """Return whether the mutant's line runs when modules are imported."""
        return not self.at_import.isdisjoint({(mutant.file, mutant.line), (mutant.file, mutant.statement_line)})

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests that run the mutant's line, those to run first and those to run if the first notice nothing.

        The order is: its module's own tests, those of its package, others; the quickest of each first. A line that is
        newer than the recording has the tests of the line that was recorded before it, and one that runs only when its
        module is imported has the module's own tests.
        """
        tests: set[str] = set()
        for line in (mutant.line, *range(mutant.statement_line, mutant.function_line - 1, -1)):
            if tests := self.lines.get((mutant.file, line), set()):
                break
        if not tests and self.is_imported(mutant):
            tests = {test for test in self.seconds if not _distance(test, mutant.file)[0]}
        first, later, total = list[str](), list[str](), 0.0
        for test in sorted(tests, key=lambda each: (*_distance(each, mutant.file), self.seconds[each], each)):
            total += self.seconds[test]
            if not first or total <= FIRST_TESTS_SECONDS_MAX:
                first.append(test)
            elif total <= FIRST_TESTS_SECONDS_MAX + LATER_TESTS_SECONDS_MAX:
                later.append(test)
        return first, later


def _distance(test: str, file: str) -> tuple[bool, bool]:
    """Return an order in which a module's own test module comes first, then the tests of its package."""
    path = test.split("::")[0]
    return Path(path).name != f"test_{Path(file).stem}.py", not path.startswith(f"tests/unit/{file.split('/')[0]}/")


@cache
def _translation(file: str, recorded: str) -> Callable[[int], int | None]:
    """Return the function from a line of the recorded form of a source file to the present one, or None."""
    present = SOURCES / file
    if not present.exists():
        return lambda line: None
    if digest(present) == recorded:
        return lambda line: line
    kept = FOLDER / "sources" / recorded
    if not kept.exists():
        return lambda line: None
    before, after = kept.read_text().splitlines(), present.read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    lines = {
        block.a + offset + 1: block.b + offset + 1
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }
    return lines.get


def keep_sources(files: Iterable[str]) -> None:
    """Keep the present text of source files, under the names that recordings give them."""
    folder = FOLDER / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        path = SOURCES / file
        (folder / digest(path)).write_bytes(path.read_bytes())


def test_modules(folders: Iterable[str]) -> list[str]:
    """Return the test modules of folders and files, relative to the checkout."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("test_*.py")) or [ROOT / folder]]
    return [str(path.relative_to(ROOT)) for path in found]


def outdated(modules: Iterable[str]) -> list[str]:
    """Return the test modules that were not recorded as they are now."""
    return [module for module in modules if _recorded(module) is None]


def read(modules: Iterable[str]) -> Recording:
    """Return what was recorded of the test modules."""
    recording = Recording()
    for module in modules:
        if (recorded := _recorded(module)) is not None:
            recording.add(recorded)
    return recording


def _recorded(module: str) -> Module | None:
    path = FOLDER / "lines" / file_name(module)
    if not path.exists():
        return None
    recorded: Module = json.loads(path.read_text())
    return recorded if recorded["test_file"] == digest(ROOT / module) else None
