"""Which tests run which lines, and how long each test takes: a pytest plugin that writes a file for each test module.

Loaded by `recorded.py` with `-p`. FLOWSTONE_LINES names the folder of the files, the folder of the sources, and the
packages and modules below it that are recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.mutants.recorded import digest, file_name

_OUTPUT, _SOURCES, *_RECORDED = os.environ["FLOWSTONE_LINES"].split(os.pathsep)


class _Recorder:
    """The lines that the tests of one test module run. A test that fails is left out: it could not tell anything."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        include = [f"{_SOURCES}/{each}" for each in _RECORDED]
        self._coverage = coverage.Coverage(data_file=None, include=include, config_file=False)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "already-imported"])
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._coverage.stop()
            self._write(item.nodeid.split("::")[0], item.path)
            self._begin()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()

    def _write(self, module: str, test_file: Path) -> None:
        data = self._coverage.get_data()
        tests = [test for test in self._seconds if test not in self._failed]
        number_of = {test: number for number, test in enumerate(tests)}
        contexts = {
            str(Path(file).relative_to(_SOURCES)): data.contexts_by_lineno(file) for file in data.measured_files()
        }
        lines = {
            file: {
                line: numbers
                for line, names in names_by_line.items()
                if (numbers := [number_of[name] for name in names if name in number_of])
            }
            for file, names_by_line in contexts.items()
        }
        at_import = {
            file: [line for line, names in names_by_line.items() if "" in names]
            for file, names_by_line in contexts.items()
        }
        seconds = [round(self._seconds[test], 4) for test in tests]
        path = Path(_OUTPUT, file_name(module))
        recorded = {
            "test_file": digest(test_file),
            "sources": {file: digest(Path(_SOURCES, file)) for file in lines},
            "tests": tests,
            "seconds": seconds,
            "lines": lines,
            "at_import": at_import,
        }
        path.with_suffix(".part").write_text(json.dumps(recorded))
        path.with_suffix(".part").rename(path)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Recorder())
