"""Which tests run which lines, and how long each test takes: a pytest plugin that writes it to a file.

Loaded by `run.py` with `-p`; FLOWSTONE_LINES names the file and the folder of the sources.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_OUTPUT, _SOURCES = os.environ["FLOWSTONE_LINES"].split(os.pathsep)


class _Recorder:
    def __init__(self) -> None:
        self._coverage = coverage.Coverage(data_file=None, include=[f"{_SOURCES}/*"], config_file=False)
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        tests = [test for test in self._seconds if test not in self._failed]
        number_of = {test: number for number, test in enumerate(tests)}
        lines = {
            str(Path(file).relative_to(_SOURCES)): {
                line: numbers
                for line, contexts in data.contexts_by_lineno(file).items()
                if (numbers := [number_of[context] for context in contexts if context in number_of])
            }
            for file in data.measured_files()
        }
        seconds = [round(self._seconds[test], 4) for test in tests]
        Path(_OUTPUT).write_text(json.dumps({"tests": tests, "seconds": seconds, "lines": lines}))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder())
