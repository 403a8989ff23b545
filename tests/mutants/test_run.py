"""The round of `make mutants`: which tests it chooses, what counts as a kill, and what it reads in its own output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import copies, recorded
from tests.mutants.copies import BROKEN, KILLED, NOT_RUN, SURVIVED, TIMED_OUT, Copy, Outcome
from tests.mutants.operators import find_mutants
from tests.mutants.recorded import ROOT, Recording, digest
from tests.mutants.run import END_TO_END, LINE_TESTS, PACKAGES, named, report, sources

SOURCE = b"""
def add(a, b):
    while a < 0:
        a += 1
    return a + b

def _first():
    return [1][0]

FIRST = _first() + 0

def _adding(count):
    def add(a):
        return a + count
    return add

add_one = _adding(1)
"""
TESTS = """
from pathlib import Path
from flowstone.numbers import FIRST, add, add_one

def test_positive():
    assert add(1, 2) == 3

def test_negative():
    assert add(-1, 2) == 2

def test_one_more():
    assert add_one(1) == 2

def test_first():
    assert FIRST > 0

def test_unsteady():
    assert add(1, 2) == 3 and Path("steady").exists()
"""


@pytest.fixture(params=[(), ("tests/test_numbers.py",)], ids=["processes", "forks"])
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Copy]:
    """A copy of a checkout of one module, which tests mutants in processes or in forks of one process."""
    root = tmp_path / "checkout"
    (root / "src" / "flowstone").mkdir(parents=True)
    (root / "src" / "flowstone" / "__init__.py").touch()
    (root / "src" / "flowstone" / "numbers.py").write_bytes(SOURCE)
    (root / "tests").mkdir()
    (root / "tests" / "test_numbers.py").write_text(TESTS)
    plugin = root / "tests" / "mutants"
    plugin.mkdir()
    for name in ("verdict.py", "forks.py"):
        (plugin / name).write_bytes((ROOT / "tests" / "mutants" / name).read_bytes())
    monkeypatch.setattr(copies, "ROOT", root)
    monkeypatch.setattr(copies, "COPIED", ("src", "tests"))
    own_plugin = copies.ARGUMENTS.index("flowstone.pytest_plugin")
    monkeypatch.setattr(copies, "ARGUMENTS", copies.ARGUMENTS[: own_plugin - 1] + copies.ARGUMENTS[own_plugin + 1 :])
    monkeypatch.setattr(copies, "TEST_SECONDS_MAX", 2)
    copy = Copy(tmp_path / "copy", request.param)
    yield copy
    copy.stop()


def outcome_of(copy: Copy, change: str, *tests: str) -> Outcome:
    (mutant,) = (each for each in find_mutants("numbers.py", SOURCE) if change in each.change)
    return copy.test(mutant, [f"tests/test_numbers.py::{each}" for each in tests])


@pytest.mark.parametrize(
    ("change", "tests", "result"),
    [
        ("`a + b` -> `a - b`", ["test_positive"], KILLED),
        ("`a + b` -> `a - b`", ["test_unsteady"], SURVIVED),
        ("`a < 0` -> `a <= 0`", ["test_positive", "test_unsteady"], SURVIVED),
        ("`a += 1` -> `a -= 1`", ["test_positive", "test_negative"], TIMED_OUT),
        ("`a + b` -> `a - b`", [], NOT_RUN),
        ("`a + count` -> `a - count`", ["test_one_more"], KILLED),
    ],
)
def test_a_mutant_is_killed_only_by_a_test_that_passes_without_it(
    copy: Copy, change: str, tests: list[str], result: str
) -> None:
    assert outcome_of(copy, change, *tests).result == result
    assert (copy.sources / "numbers.py").read_bytes() == SOURCE
    assert (copies.ROOT / "src" / "flowstone" / "numbers.py").read_bytes() == SOURCE


@pytest.mark.parametrize("copy", [()], indirect=True)
def test_a_mutant_that_breaks_an_import_is_not_killed(copy: Copy) -> None:
    assert outcome_of(copy, "`0` -> `1` in `return [1][0]`", "test_positive").result == BROKEN


def test_what_a_mutant_changes_during_an_import_is_noticed_by_a_process_that_imports_it(copy: Copy) -> None:
    (mutant,) = (each for each in find_mutants("numbers.py", SOURCE) if each.change == "`1` -> `0` in `return [1][0]`")
    assert copy.test(mutant, ["tests/test_numbers.py::test_first"], is_imported=True).result == KILLED


def test_a_test_that_does_not_exist_is_an_error_of_the_round(copy: Copy) -> None:
    with pytest.raises(RuntimeError, match=r"cannot run .*test_missing"):
        outcome_of(copy, "`a + b` -> `a - b`", "test_missing")


def test_a_modules_own_tests_come_first_and_then_the_quickest_of_its_package_and_slow_ones_later() -> None:
    (mutant,) = find_mutants("log/add.py", b"def add(a):\n    return 0\n")[1:]
    seconds = {
        "tests/unit/broker/test_network.py::test_one": 0.1,
        "tests/unit/log/test_other.py::test_slow": 3.0,
        "tests/unit/log/test_other.py::test_quick": 1.0,
        "tests/unit/log/test_add.py::test_add": 2.0,
        "tests/unit/broker/test_network.py::test_slower": 24.0,
        "tests/unit/broker/test_network.py::test_too_slow": 71.0,
    }
    recording = Recording(seconds, {("log/add.py", 2): set(seconds)})
    first, later = recording.tests_of(mutant)
    assert first == [
        "tests/unit/log/test_add.py::test_add",
        "tests/unit/log/test_other.py::test_quick",
        "tests/unit/log/test_other.py::test_slow",
        "tests/unit/broker/test_network.py::test_one",
    ]
    assert later == ["tests/unit/broker/test_network.py::test_slower"]


def test_a_line_that_runs_only_when_its_module_is_imported_has_the_modules_own_tests() -> None:
    (mutant,) = find_mutants("log/add.py", b"def add(a):\n    return 0\n")[1:]
    seconds = {"tests/unit/log/test_add.py::test_add": 1.0, "tests/unit/log/test_other.py::test": 1.0}
    assert Recording(seconds).tests_of(mutant) == ([], [])
    assert Recording(seconds, at_import={("log/add.py", 2)}).tests_of(mutant) == (
        ["tests/unit/log/test_add.py::test_add"],
        [],
    )


def test_what_is_recorded_in_a_round_is_read_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "cache")
    (tmp_path / "test_add.py").write_text("def test(): pass\n")
    assert recorded.outdated(["test_add.py"]) == ["test_add.py"]
    (tmp_path / "cache" / "lines").mkdir(parents=True)
    module = {"test_file": digest(tmp_path / "test_add.py"), "sources": {}, "tests": ["test_add.py::test"]}
    module |= {"seconds": [1.0], "lines": {}, "at_import": {}}
    (tmp_path / "cache" / "lines" / recorded.file_name("test_add.py")).write_text(json.dumps(module))
    assert recorded.outdated(["test_add.py"]) == []
    assert recorded.read(["test_add.py"]).seconds == {"test_add.py::test": 1.0}


def test_lines_that_moved_keep_their_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(recorded, "FOLDER", tmp_path / "cache")
    source = tmp_path / "src" / "add.py"
    source.parent.mkdir()
    source.write_text("def add(a):\n    return a + 1\n")
    recorded.keep_sources(["add.py"])
    module: Any = {"sources": {"add.py": digest(source)}, "tests": ["test"], "seconds": [1.0]}
    source.write_text("import this\n\ndef add(a):\n    a += 1\n    return a + 1\n")
    recording = Recording()
    recording.add({**module, "lines": {"add.py": {"1": [0], "2": [0]}}, "at_import": {"add.py": [2]}})
    assert set(recording.lines) == {("add.py", 3), ("add.py", 5)}
    mutants = find_mutants("add.py", source.read_bytes())
    assert all(recording.tests_of(each) == (["test"], []) for each in mutants)
    assert {each.line for each in mutants if recording.is_imported(each)} == {5}


def test_what_was_not_noticed_is_found_in_earlier_output() -> None:
    log = (
        "[1/3] killed: a.py:1 f: `1` -> `2` in `x = 1` tests/test_a.py::test\n"
        "[2/3] survived: a.py:12 f: `1` -> `2` in `y = 1`\n"
        "[3/3] run by no test: b.py:7 g.h: removed `x: y`\n"
    )
    assert named(log, SURVIVED, NOT_RUN) == {"a.py f: `1` -> `2` in `y = 1`", "b.py g.h: removed `x: y`"}
    assert named(log, KILLED) == {"a.py f: `1` -> `2` in `x = 1`"}


def test_mutants_that_cannot_be_imported_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = find_mutants("a.py", b"def add(a):\n    return a\n")[0]
    killed, survived, broken = (Outcome(mutant, result) for result in (KILLED, SURVIVED, BROKEN))
    assert report([killed] * 97 + [survived] * 3 + [broken] * 50, 0, 1.0)
    assert not report([killed] * 96 + [survived] * 4 + [broken] * 50, 0, 1.0)
    assert "96.0 % noticed" in capsys.readouterr().out


def test_every_changed_file_and_every_test_that_is_run_exists() -> None:
    tests = [test for chosen in END_TO_END.values() for test in chosen]
    paths = [f"src/flowstone/{file}" for file in sources()] + [*LINE_TESTS, *tests]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(END_TO_END) == {*PACKAGES, "broker"}
