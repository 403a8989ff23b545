"""`rules.txt` names every rule of transactions with its tests; this checks that they exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
RULES = Path(__file__).with_name("rules.txt")
_FILE = re.compile(r"(?P<short>\w+) += (?P<path>tests/\S+)")
_TEST = re.compile(r"  (?P<short>\w+): (?P<name>\S.*)")


class Reference(NamedTuple):
    path: str
    name: str


class Rule(NamedTuple):
    section: str
    text: str
    tests: list[Reference]


def read_rules(text: str) -> list[Rule]:
    rules: list[Rule] = []
    paths: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if not line or line.startswith("# ") or line == "#":
            continue
        if found := _FILE.fullmatch(line):
            paths[found["short"]] = found["path"]
        elif line.startswith("## "):
            section = line[3:]
        elif line.startswith("- "):
            rules.append(Rule(section, line[2:], []))
        else:
            test = _TEST.fullmatch(line)
            assert test is not None, f"neither a rule nor a test: {line}"
            rules[-1].tests.append(Reference(paths[test["short"]], test["name"]))
    return rules


@cache
def names_in(path: str) -> frozenset[str]:
    """Return what can be named in a file: its test functions, its scenarios' titles, or the rows of a table."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        nodes = ast.walk(ast.parse(text))
        return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(line.removeprefix("=== ") for line in text.splitlines())


def is_missing(test: Reference) -> bool:
    if test.path.endswith("table.txt"):
        return not any(row.startswith(test.name + " ") for row in names_in(test.path))
    return test.name not in names_in(test.path)


def missing(rules: list[Rule]) -> Iterator[str]:
    for rule in rules:
        if not rule.tests:
            yield f"{rule.text}: no test"
        for test in rule.tests:
            if is_missing(test):
                yield f"{rule.text}: {test.name} is not in {test.path}"


def test_every_rule_has_a_test_and_all_tests_exist() -> None:
    rules = read_rules(RULES.read_text(encoding="utf-8"))
    assert len(rules) > 100
    assert list(missing(rules)) == []


def test_no_rule_is_named_twice() -> None:
    counts = Counter((rule.section, rule.text) for rule in read_rules(RULES.read_text(encoding="utf-8")))
    assert [each for each, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    "lines",
    [
        "- a rule",
        "- a rule\n  here: test_that_does_not_exist",
        "- a rule\n  table: EndTxn, commit                   5-5      nobody",
    ],
)
def test_a_rule_whose_test_is_missing_is_found(lines: str) -> None:
    files = "here = tests/unit/transactions/test_rules.py\ntable = tests/unit/transactions/state_table.txt\n"
    assert list(missing(read_rules(files + lines)))
    assert not list(missing(read_rules(f"{files}- a rule\n  here: test_no_rule_is_named_twice")))
