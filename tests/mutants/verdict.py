"""What happened in a test run, as lines of a file: a pytest plugin, loaded by `copies.py` with `-p`.

Each line is a JSON array of a word and a test's id: `begun`, `ended`, `failed` or `timed out` (a failure by the test's
time limit). A run that fails before its first test, such as by an error in collection, writes none of them.
"""

from __future__ import annotations

import json
import os

import pytest

_PATH = os.environ["FLOWSTONE_VERDICT"]


def _note(word: str, test: str) -> None:
    with open(_PATH, "a", encoding="utf-8") as file:
        file.write(json.dumps([word, test]) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _note("begun", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note("timed out" if "Timeout (>" in report.longreprtext else "failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _note("ended", nodeid)
