"""The operators of `make mutants`: what is changed, what is left alone, and that a change is named for good."""

from __future__ import annotations

import tomllib

import pytest

from tests.mutants.operators import find_mutants
from tests.mutants.recorded import ROOT
from tests.mutants.run import pick, rank, read_judged, sources


def changes(body: str) -> list[str]:
    """Every changed form of a function's body."""
    source = f"def function(a, b):\n    {body}\n".encode()
    return [
        mutant.apply(source).decode().split("\n    ", 1)[1].rstrip("\n") for mutant in find_mutants("file.py", source)
    ]


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("a.call(b)", ["pass"]),
        ("a.field = b", ["pass"]),
        ("return a < b", ["return None", "return (a <= b)"]),
        ("return a and not b", ["return None", "return (a or not b)", "return a and (b)"]),
        ("if a: b()", ["if (not a): b()", "if a: pass"]),
        ("return max(a, 1)", ["return None", "return (min(a, 1))", "return max(a, (2))", "return max(a, (0))"]),
        ("return False", ["return (True)"]),
        ("return 0", ["return None", "return (1)"]),
        ("a += b", ["pass", "a -= b"]),
        ("raise ValueError(f'{a + 1}')", ["pass"]),
    ],
)
def test_code_is_changed_in_every_way_the_operators_know(body: str, changed: list[str]) -> None:
    assert changes(body) == changed


@pytest.mark.parametrize("body", ["assert a > 1", "logger.info('%s', a + 1)", "return None", "c: int"])
def test_what_no_test_should_notice_is_left_alone(body: str) -> None:
    assert changes(body) == []


def test_every_mutant_of_the_sources_compiles() -> None:
    for file in sources()[::10]:
        source = (ROOT / "src" / "flowstone" / file).read_bytes()
        for mutant in find_mutants(file, source):
            compile(mutant.apply(source), file, "exec")


def test_every_judged_mutant_has_a_reason_that_is_a_sentence() -> None:
    with (ROOT / "tests" / "mutants" / "judged.toml").open("rb") as file:
        judged = tomllib.load(file)["equivalent"]
    assert len(read_judged()) == len(judged)
    assert all(each["reason"].endswith(".") for each in judged)


def test_every_judged_mutant_can_still_be_made() -> None:
    files = {file for file, _, _ in read_judged()}
    possible = {
        (mutant.file, mutant.function, mutant.change)
        for file in files
        for mutant in find_mutants(file, (ROOT / "src" / "flowstone" / file).read_bytes())
    }
    assert set(read_judged()) - possible == set()


def test_what_is_picked_hardly_depends_on_the_rest_of_the_code() -> None:
    before = b"def one(a):\n    return a + 1\n"
    (mutant, *_), (moved, *_) = find_mutants("a.py", before), find_mutants("a.py", b"import x\n\n\n" + before)
    assert mutant.line != moved.line
    assert rank(mutant, 1) == rank(moved, 1)
    assert rank(mutant, 1) != rank(mutant, 2)
    few, more = pick(20, 1), pick(30, 1)
    assert more[:20] == few
    assert len({mutant.file for mutant in more}) > 10
