"""A copy of the checkout in which one mutant at a time is tested, and what pytest said about it.

A failing test kills a mutant only if it passes without the mutant, in the same copy and right after. So neither an
error in collection, a missing test, an unsteady test nor a slow machine counts as a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.operators import Mutant
from tests.mutants.recorded import ROOT

COPIED = ("src", "tests", "docs", "bench", "scripts", "examples", "deploy", "pyproject.toml", "README.md", "Makefile")
# Only these are loaded: the others take twice as long to start as a test takes to run.
PLUGINS = ("no:cacheprovider", "pytest_timeout", "_hypothesis_pytestplugin", "flowstone.pytest_plugin")
SIM_SEEDS = 12
MUTANT_SECONDS_MAX = 240  # of one run of pytest, on a busy machine
MUTANT_CPU_SECONDS_MAX = 120
TEST_SECONDS_MIN = 20  # a test's time limit is at least this, and else TEST_SLOWDOWN_MAX times what it usually takes
TEST_SLOWDOWN_MAX = 8
RECORDED_TEST_SECONDS = 10  # what a test is thought to take before it was recorded

KILLED, TIMED_OUT, SURVIVED = "killed", "timed out", "survived"
NOT_RUN, BROKEN = "run by no test", "cannot be imported"


@dataclass
class Outcome:
    mutant: Mutant
    result: str
    test: str = ""  # the one that failed

    def __str__(self) -> str:
        return f"{self.result}: {self.mutant} {self.test}".rstrip()


@dataclass
class Verdict:
    """What one run of pytest noted."""

    status: int
    begun: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # how each test failed
    output: str = ""

    @property
    def culprit(self) -> tuple[str, str] | None:
        """The first test that failed, or that was under way when the process ended, and how; None if there is none."""
        for test, result in self.failed.items():
            return test, result
        unfinished = [test for test in self.begun if test not in self.ended]
        return (unfinished[-1], TIMED_OUT) if unfinished else None


class Stopped(Exception):
    """The round was interrupted."""


class Copy:
    """One copy. `stop` may be called by another thread: it ends the test that runs."""

    def __init__(self, path: Path) -> None:
        self.path, self.sources = path, path / "src" / "flowstone"
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()
        self._steady: set[str] = set()  # tests that were seen to pass without a mutant
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("*.pyc.*", ".pytest_cache"))
            else:
                shutil.copy2(source, path / name)

    def stop(self) -> None:
        self._stopped.set()
        if (process := self._process) is not None:
            _end_group(process.pid)

    def test(self, mutant: Mutant, tests: Sequence[str], seconds: float = 0.0) -> Outcome:
        """Run the tests with the mutant in place of the original until one fails because of it.

        `seconds` is what the slowest of them usually takes.
        """
        left = list(tests)
        while left:
            with self._changed(mutant):
                verdict = self.pytest(left, seconds)
            if verdict.culprit is None:
                if verdict.status == 0:
                    return Outcome(mutant, SURVIVED)
                return self._without_verdict(mutant, left, seconds, verdict)
            test, result = verdict.culprit
            if self._is_steady(test, seconds) and (result == KILLED or self._fails_again(mutant, test, seconds)):
                return Outcome(mutant, result, test)
            print(f"left out, the mutant is not why it failed: {test}", flush=True)
            left = _after(left, test)
        return Outcome(mutant, SURVIVED if tests else NOT_RUN)

    def pytest(self, tests: Sequence[str], seconds: float, *more: str, **settings: str) -> Verdict:
        """Run tests, ids or paths, and return what happened."""
        if self._stopped.is_set():
            raise Stopped
        notes, chosen = self.path / "verdict", self.path / "chosen-tests"
        notes.unlink(missing_ok=True)
        chosen.write_text("\n".join(tests))
        plugins = [word for name in (*PLUGINS, "tests.mutants.verdict") for word in ("-p", name)]
        limit_s = max(TEST_SECONDS_MIN, TEST_SLOWDOWN_MAX * seconds)
        fixed = (*plugins, "--hypothesis-seed=0", f"--timeout={limit_s:.0f}", "-q", "--no-header", "-x", *more)
        environment = self._environment(FLOWSTONE_VERDICT=str(notes), **settings)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *fixed, f"@{chosen}"],
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_cpu if not more else None,
        )
        verdict = Verdict(self._wait(self._process, MUTANT_SECONDS_MAX if not more else None))
        verdict.output = self._output
        for line in notes.read_text().splitlines() if notes.exists() else ():
            word, test = json.loads(line)
            if word == "begun":
                verdict.begun.append(test)
            elif word == "ended":
                verdict.ended.add(test)
            else:
                verdict.failed.setdefault(test, TIMED_OUT if word == "timed out" else KILLED)
        return verdict

    def record(self, module: str, **settings: str) -> None:
        """Run a test module with the plugin that notes the lines, however long it takes."""
        self.pytest([module], RECORDED_TEST_SECONDS, "-p", "tests.mutants.lines", "--maxfail=1000", **settings)

    def _wait(self, process: subprocess.Popen[str], seconds: float | None) -> int:
        self._output = ""
        try:
            self._output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process.pid)
            self._process = None
        if self._stopped.is_set():
            raise Stopped
        return process.wait()

    def _is_steady(self, test: str, seconds: float) -> bool:
        """Return whether the test passes without a mutant."""
        if test not in self._steady:
            verdict = self.pytest([test], seconds)
            if verdict.status != 0 or test not in verdict.ended:
                return False
            self._steady.add(test)
        return True

    def _fails_again(self, mutant: Mutant, test: str, seconds: float) -> bool:
        """Return whether the test fails or hangs with the mutant when it runs alone, with its whole time limit."""
        with self._changed(mutant):
            return self.pytest([test], seconds).culprit is not None

    def _without_verdict(self, mutant: Mutant, tests: Sequence[str], seconds: float, verdict: Verdict) -> Outcome:
        """Return the outcome where no test has begun: with the mutant the test modules cannot be imported."""
        if self.pytest(tests[:1], seconds).status != 0:
            raise RuntimeError(f"pytest cannot run {tests[0]}, chosen for {mutant}: {verdict.output[-500:]}")
        return Outcome(mutant, BROKEN)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.sources / mutant.file
        source, stat = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        try:
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _environment(self, **more: str) -> dict[str, str]:
        paths = f"{self.path / 'src'}{os.pathsep}{self.path}"
        fixed = {"PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **fixed, "FLOWSTONE_SIM_SEEDS": str(SIM_SEEDS), **more}


def _after(tests: Sequence[str], test: str) -> list[str]:
    """Return the tests without the one; paths, which stand for many tests, without the module's path."""
    return [each for each in tests if each not in (test, test.split("::")[0])]


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MUTANT_CPU_SECONDS_MAX, MUTANT_CPU_SECONDS_MAX + 5))


def _end_group(leader_pid: int) -> None:
    """End what a test run has started and left: a mutant may have made it forget its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)
