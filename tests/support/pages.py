"""The pages for people, as tests see them: blocks of code, and what those print."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# A block, or the word that the broker is stopped by hand here, which is said to people in prose.
_STEP = re.compile(r"^```(\w+)\n(.*?)^```$|^<!-- (the broker stops) -->$", re.MULTILINE | re.DOTALL)
STOP = "the broker stops"


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(each[1] or each[3], each[2] or "") for each in _STEP.finditer(page.read_text(encoding="utf-8"))]


def printed_by(page: Path, module: str) -> str:
    """Return what a program prints according to a page: the block after the one with its command."""
    on_page = blocks(page)
    (at,) = (at for at, block in enumerate(on_page) if block.text == f"python -m {module}\n")
    assert on_page[at + 1].language == "text"
    return on_page[at + 1].text


def assert_shows(page: Path, program: Path) -> None:
    """Check that the lines of a program on a page are lines of the program; "# …" stands for others between them."""
    name = f"# {program.relative_to(ROOT)}\n"
    (shown,) = (block.text for block in blocks(page) if block.text.startswith(name))
    source = program.read_text(encoding="utf-8").splitlines()
    for part in shown.removeprefix(name).split("# …\n"):
        part = part.rstrip("\n") + "\n"
        length = part.count("\n")
        assert part in [
            textwrap.dedent("\n".join(source[at : at + length]) + "\n") for at in range(len(source) - length + 1)
        ]


def assert_prints(expected: str, printed: str, matches: Callable[[str, str], object]) -> None:
    """Compare line by line, in any order. A last line of "…" alone says that more lines may be printed."""
    left = printed.splitlines()
    lines = expected.splitlines()
    is_open = lines[-1:] == ["…"]
    for line in lines[:-1] if is_open else lines:
        found = next((each for each in left if matches(line, each)), None)
        assert found is not None, f"the page says {line!r}, left of what was printed is {left}"
        left.remove(found)
    assert is_open or left == []


def is_same(expected: str, line: str) -> bool:
    """… stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), line) is not None


def is_same_word(expected: str, line: str) -> bool:
    return expected.split()[0] == line.split()[0]
