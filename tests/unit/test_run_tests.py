"""The script behind `make test`: which tests are run again, what it says of them, and what it remembers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = "import pathlib, sys; from scripts.run_tests import run; sys.exit(run(sys.argv[2:], pathlib.Path(sys.argv[1])))"
FLAKY = """
from pathlib import Path

def test_that_fails_once():
    mark = Path(__file__).with_suffix(".ran")
    was_run = mark.exists()
    mark.touch()
    assert was_run
"""
ALWAYS = "def test_{}(): assert False\n"


@pytest.fixture
def run(tmp_path):
    """Runs the script on tests in a project of their own; returns its exit code and the lines it printed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def start(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(record(tmp_path)), "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()

    return start


def record(directory):
    return directory / "cache" / "reruns.json"


def ending(lines):
    return [line for line in lines if line.startswith(("run ", "no test"))]


def test_a_test_that_passes_alone_is_named_with_the_outcome_of_each_run(run):
    code, lines = run(test_it=FLAKY + "def test_good(): pass\n")
    assert code == 0
    assert any(line.startswith("1 failed, 1 passed in") for line in lines), "the line of pytest stays"
    assert ending(lines) == [
        "run 2 times: test_it.py::test_that_fails_once: failed, passed",
        "run again so far: test_it.py::test_that_fails_once: 1 times, 1 passed, 0 failed",
    ]


def test_a_test_that_fails_alone_fails_the_run(run):
    code, lines = run(test_it=ALWAYS.format("bad"), test_other=FLAKY)
    assert code == 1
    assert ending(lines)[:2] == [
        "run 2 times: test_it.py::test_bad: failed, failed",
        "run 2 times: test_other.py::test_that_fails_once: failed, passed",
    ]


def test_many_failures_are_not_run_again(run, tmp_path):
    code, lines = run(test_it="".join(map(ALWAYS.format, "abcd")))
    assert code == 1
    assert ending(lines) == ["no test was run again: 4 failed, and 3 are the most"]
    assert not record(tmp_path).exists()


def test_nothing_is_said_where_nothing_failed(run):
    code, lines = run(test_it="def test_good(): pass\n")
    assert (code, ending(lines)) == (0, [])


def test_runs_are_counted_over_time(run, tmp_path):
    run(test_it=ALWAYS.format("bad"))
    _code, lines = run(test_it=ALWAYS.format("bad"), test_other=FLAKY)
    assert ending(lines)[2:] == [
        "run again so far: test_it.py::test_bad: 2 times, 0 passed, 2 failed",
        "run again so far: test_other.py::test_that_fails_once: 1 times, 1 passed, 0 failed",
    ]
    assert json.loads(record(tmp_path).read_text())["test_it.py::test_bad"] == {"passed": 0, "failed": 2}


def test_a_record_that_cannot_be_read_is_begun_anew(run, tmp_path):
    record(tmp_path).parent.mkdir()
    record(tmp_path).write_text("{")
    _code, lines = run(test_it=FLAKY)
    assert ending(lines)[1:] == ["run again so far: test_it.py::test_that_fails_once: 1 times, 1 passed, 0 failed"]
