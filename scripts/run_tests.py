"""Runs pytest, repeats the few tests that failed, each alone, and counts these second runs per test.

Tests here kill real processes and have real deadlines, so a busy machine sometimes fails one; a defect fails again.
More failures than SECOND_RUNS_MAX are no accident and are not repeated. The last lines name each repeated test with the
result of each run. RECORD counts them over all runs on this machine: a test that appears often has a cause that must be
found, even if it passes the second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

SECOND_RUNS_MAX = 3
RECORD = Path(__file__).parents[1] / ".cache" / "test-reruns.json"
RECORD_TESTS_MAX = 100
PASSED, FAILED = "passed", "failed"

Counts = dict[str, dict[str, int]]  # by test: how often the second run passed, and how often it failed


class _Failures:
    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


class Result(NamedTuple):
    """What a run of pytest ended with, and the tests that failed in it."""

    code: int
    failures: list[str]


def run(arguments: list[str], record: Path = RECORD) -> int:
    """Run pytest; return its exit code, or 0 if the few tests that failed passed when repeated."""
    return repeat(run_once(arguments), record)


def run_once(arguments: list[str]) -> Result:
    """Run pytest and repeat nothing."""
    failures = _Failures()
    return Result(int(pytest.main(arguments, plugins=[failures])), failures.tests)


def repeat(result: Result, record: Path = RECORD) -> int:
    """Repeat the few tests that failed in a run; return its exit code, or 0 if all of them passed now."""
    code, failures = result
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures) <= SECOND_RUNS_MAX:
        if code == pytest.ExitCode.TESTS_FAILED:
            print(f"no test was run again: {len(failures)} failed, and {SECOND_RUNS_MAX} are the most", flush=True)
        return code
    outcomes = {test: _run_alone(test) for test in failures}
    for test, outcome in outcomes.items():
        print(f"run 2 times: {test}: {FAILED}, {outcome}", flush=True)
    for test, counts in _recorded(record, outcomes).items():
        times = sum(counts.values())
        print(
            f"run again so far: {test}: {times} times, {counts[PASSED]} {PASSED}, {counts[FAILED]} {FAILED}", flush=True
        )
    return code if FAILED in outcomes.values() else 0


def _run_alone(test: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pytest", test], check=False)
    return PASSED if done.returncode == 0 else FAILED


def _recorded(record: Path, outcomes: dict[str, str]) -> Counts:
    """Add the outcomes to the record and return it, with the tests repeated last at the end."""
    try:
        counts: Counts = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        counts = {}
    for test, outcome in outcomes.items():
        of_test = counts.pop(test, {PASSED: 0, FAILED: 0})
        counts[test] = {**of_test, outcome: of_test[outcome] + 1}
    counts = dict(list(counts.items())[-RECORD_TESTS_MAX:])
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(counts, indent=1), encoding="utf-8")
    return counts


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
