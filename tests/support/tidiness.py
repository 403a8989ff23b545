"""What the tidiness test measures: sizes of files, functions and packages, and the style of the prose.

Some counts are not yet zero. `tidiness_allowances.json` holds what each file is allowed; the test fails if a count is
higher, and also if it is lower, so that the allowance follows. `python -m tests.support.tidiness` rewrites the file. It
refuses to let the sum of a kind rise, unless `--allow-more` is given, which a review then sees in the file's change.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

ROOT = Path(__file__).parents[2]
ALLOWANCES = Path(__file__).with_name("tidiness_allowances.json")
TREES = ("src", "bench", "scripts", "examples", "tests")
GENERATED = "src/flowstone/wire/messages/generated.py"
# They quote what they ban.
ABOUT_STYLE = ("tests/support/tidiness.py", "tests/unit/test_tidiness.py", "docs/contributing.md")

# Home-made metaphors, and the field's terms for them. Part of a name counts, as in `make_room`.
BANNED_WORDS = {
    r"look(?:s|ing|ed)? out for": "watch, wait for",
    r"put(?:s|ting)? aside": "reserve, set, buffer",
    r"rooms?(?![\"`])": "space, capacity, free bytes",  # in quotes: a field that `flowstone log dump --json` prints
    r"ke(?:ep|eps|eping|pt) books": "track, record",
    r"book-?keeping": "tracking",
    r"lend(?:s|ing)?": "hand over, reserve, pass",
    r"lent": "handed over, reserved, passed",
    r"patien(?:ce|t)": "timeout, retry deadline",
    r"nobody's sake": "(leave out)",
    r"without a word": "silently, without a response",
    r"the other way round": "the inverse: decode, parse, restore",
    r"who(?:ever|m) (?:asks|asked|waits|keeps|needs|gets|has)": "the caller, the client, a request that",
}
# Each begins with a literal text, by which `re` searches fast; the letter before a match is looked at afterwards.
_BANNED = [re.compile(rf"{word}(?![a-z])") for word in BANNED_WORDS]

# First words of a docstring that leave its subject open.
_OPENER = re.compile(r"(?:It|Who|Whoever|Whom|Those|They|That|None if|None where|None:|The other way)\b")
_SENTENCE_END = re.compile(r"(?<=[.;:])\s+")
_FIRST_WORD = re.compile(r"\W*(\w+)")

# Directories of one machine: those of users, and this checkout's own.
MACHINE_PATH = re.compile(
    rf"(?<![\w.])(?:{re.escape(str(ROOT))}\b|/home/(?!you)\w|/Users/\w|/{'root'}/|[A-Z]:\\\\Users)"
)


class Function(NamedTuple):
    path: str
    name: str
    lines: int


@cache
def texts() -> Mapping[str, str]:
    """Return the Python files of the project by their path, but for generated ones."""
    paths = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    del found[GENERATED]
    return found


@cache
def prose() -> Mapping[str, str]:
    """Return the documents for people by their path, but for decisions and the changelog, which are history."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages}


class _Outline(NamedTuple):
    """What is looked at of a file's syntax tree, which itself is large."""

    functions: list[Function]
    docstrings: list[str]
    bases: dict[str, list[str]]  # of its classes


@cache
def _outline(path: str) -> _Outline:
    outline = _Outline([], [], {})
    left: list[ast.AST] = [ast.parse(texts()[path])]
    while left:
        node = left.pop()
        if isinstance(node, ast.expr):
            continue
        if isinstance(node, ast.Module | ast.ClassDef | _FUNCTION) and (docstring := ast.get_docstring(node)):
            outline.docstrings.append(docstring)
        if isinstance(node, _FUNCTION):
            outline.functions.append(Function(path, node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            outline.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
        left.extend(ast.iter_child_nodes(node))
    return outline


def functions() -> Iterator[Function]:
    for path in texts():
        yield from _outline(path).functions


def package_sizes() -> Counter[str]:
    """Return the number of modules of each package, `__init__` and `__main__` excepted."""
    return Counter(path.rpartition("/")[0] for path in texts() if not path.endswith(("__init__.py", "__main__.py")))


# Kinds of counts with allowances


def banned_words() -> Counter[str]:
    files = {path: text for path, text in {**texts(), **prose()}.items() if path not in ABOUT_STYLE}
    return Counter({path: len(found) for path, text in files.items() if (found := find_banned(text))})


def find_banned(text: str) -> list[str]:
    """Return the banned words in a text, in lower case."""
    lowered = text.lower()
    found = (match for word in _BANNED for match in word.finditer(lowered))
    return [match[0] for match in found if not lowered[max(match.start() - 1, 0) : match.start()].isalpha()]


def open_docstrings() -> Counter[str]:
    """Return how many docstrings of each file begin with a word that leaves the subject open."""
    return Counter({path: found for path in _sources() if (found := sum(map(_is_open, _docstrings(path))))})


def bare_exceptions() -> Counter[str]:
    """Return how many docstrings of each file have a sentence that begins with the name of an exception."""
    return Counter({path: found for path in _sources() if (found := sum(map(_names_exception, _docstrings(path))))})


def modules_without_test() -> Counter[str]:
    """Return for each package how many of its modules have no test module of their own."""
    missing: Counter[str] = Counter()
    for path in _sources():
        package, _, name = path.rpartition("/")
        if not name.startswith("__") and test_of(path) not in texts():
            missing[package] += 1
    return missing


KINDS: Mapping[str, Callable[[], Counter[str]]] = {
    "banned words": banned_words,
    "docstrings without a subject": open_docstrings,
    "docstrings with a bare exception name": bare_exceptions,
    "modules without a test module": modules_without_test,
}


def test_of(path: str) -> str:
    """Return the path of the test module that a module of src should have."""
    package, _, name = path.rpartition("/")
    inner = package.removeprefix("src/").replace("pyspark_flowstone", "spark", 1).removeprefix("flowstone")
    return f"tests/unit{'' if not inner or inner.startswith('/') else '/'}{inner}/test_{name}".replace("//", "/")


def _sources() -> list[str]:
    return [path for path in texts() if path.startswith("src/")]


def _docstrings(path: str) -> list[str]:
    return _outline(path).docstrings


def _is_open(docstring: str) -> bool:
    return _OPENER.match(docstring) is not None


def _names_exception(docstring: str) -> bool:
    words = (_FIRST_WORD.match(sentence) for sentence in _SENTENCE_END.split(docstring))
    return any(word[1] in _exception_names() for word in words if word is not None)


@cache
def _exception_names() -> frozenset[str]:
    """Return the names of Python's exceptions, and of the classes of src that are derived from them."""
    names = {"OSError", "ValueError", "TypeError", "KeyError", "LookupError", "TimeoutError", "EOFError", "Exception"}
    names |= {"ConnectionError", "BlockingIOError", "RuntimeError", "NotImplementedError", "StopIteration"}
    classes = {name: bases for path in _sources() for name, bases in _outline(path).bases.items()}
    size = 0
    while size < len(names):
        size = len(names)
        names |= {name for name, bases in classes.items() if names.intersection(bases)}
    return frozenset(names)


def read_allowances() -> dict[str, dict[str, int]]:
    stored: dict[str, dict[str, int]] = json.loads(ALLOWANCES.read_text(encoding="utf-8"))
    return stored


def write_allowances(*, allow_more: bool = False) -> None:
    """Set every allowance to what is there. Raises SystemExit if the sum of a kind would rise."""
    stored = read_allowances() if ALLOWANCES.exists() else {}
    counted = {kind: dict(sorted(count().items())) for kind, count in KINDS.items()}
    for kind, counts in counted.items():
        allowed, found = sum(stored.get(kind, counts).values()), sum(counts.values())
        print(f"{kind}: {allowed} -> {found}")
        if found > allowed and not allow_more:
            raise SystemExit(f"{kind}: {found}, and {allowed} are allowed: mend the new ones")
    ALLOWANCES.write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--allow-more", action="store_true")
    write_allowances(allow_more=parser.parse_args().allow_more)
