"""pytest, with a second run, alone, of the few tests that failed: a busy machine is late once, a defect comes again.

Tests here kill real processes and keep real deadlines. What passed only the second time is named in the last lines
printed, for somebody to mend; more failures than SECOND_RUNS_MAX are no accident and get no second run.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SECOND_RUNS_MAX = 3


class _Failures:
    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


def run(arguments: list[str]) -> int:
    failures = _Failures()
    code = pytest.main(arguments, plugins=[failures])
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.tests) <= SECOND_RUNS_MAX:
        return int(code)
    again = subprocess.run([sys.executable, "-m", "pytest", *failures.tests], check=False).returncode
    for test in failures.tests if again == 0 else []:
        print(f"passed only when run again, alone: {test}", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
