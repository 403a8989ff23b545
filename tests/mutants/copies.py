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
from typing import Any

from tests.mutants.forks import Answer, Request
from tests.mutants.operators import Mutant
from tests.mutants.recorded import ROOT

COPIED = ("src", "tests", "docs", "bench", "scripts", "examples", "deploy", "pyproject.toml", "README.md", "Makefile")
# Only these are loaded: the others take twice as long to start as a test takes to run.
PLUGINS = ("no:cacheprovider", "pytest_timeout", "_hypothesis_pytestplugin", "flowstone.pytest_plugin")
ARGUMENTS = [word for name in (*PLUGINS, "tests.mutants.verdict") for word in ("-p", name)]
ARGUMENTS += ["--hypothesis-seed=0", "-q", "--no-header"]
SIM_SEEDS = 12
MUTANT_SECONDS_MAX = 240  # of one run of pytest, on a busy machine
MUTANT_CPU_SECONDS_MAX = 120
TEST_SECONDS_MAX = 30  # of one test, on a busy machine
RECORDED_TEST_SECONDS_MAX = 90

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


class Forks:
    """A process that has collected test modules and runs tests in forks of itself: `forks.py`."""

    def __init__(self, path: Path, modules: Sequence[str], environment: dict[str, str]) -> None:
        collected = path / "collected-modules"
        collected.write_text("\n".join(modules))
        (their_requests, self._requests), (self._answers, their_answers) = os.pipe(), os.pipe()
        theirs, more = (their_requests, their_answers), ("-p", "tests.mutants.forks", f"--timeout={TEST_SECONDS_MAX}")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *ARGUMENTS, *more, f"@{collected}"],
            cwd=path,
            env={**environment, "FLOWSTONE_FORKS": f"{their_requests} {their_answers}"},
            stdout=subprocess.DEVNULL,
            pass_fds=theirs,
            start_new_session=True,
        )
        for descriptor in theirs:
            os.close(descriptor)
        self._outgoing, self._incoming = os.fdopen(self._requests, "w"), os.fdopen(self._answers)
        self.tests = frozenset[str](self._read())

    def ask(self, request: Request) -> str:
        print(json.dumps(request), file=self._outgoing, flush=True)
        return str(self._read())

    def close(self) -> None:
        """End the process and what it has started."""
        _end_group(self._process.pid)
        self._process.wait()
        for pipe in (self._outgoing, self._incoming):
            with contextlib.suppress(OSError):
                pipe.close()

    def _read(self) -> Any:
        line = self._incoming.readline()
        if not line:
            raise Stopped("the process that has collected the tests has ended")
        return json.loads(line)


class Copy:
    """One copy. `stop` may be called by another thread: it ends the test that runs."""

    def __init__(self, path: Path, collected: Sequence[str] = ()) -> None:
        """`collected` are the test modules whose tests run in forks; others run in processes of their own."""
        self.path, self.sources = path, path / "src" / "flowstone"
        self._collected = collected
        self._forks: Forks | None = None
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
        """End the test that runs; the copy is not used again."""
        self._stopped.set()
        if (process := self._process) is not None:
            _end_group(process.pid)
        if self._forks is not None:
            self._forks.close()

    def test(self, mutant: Mutant, tests: Sequence[str], *, is_imported: bool = False) -> Outcome:
        """Run the tests with the mutant in place of the original until one fails because of it.

        With `is_imported` the changed file is imported: a fork would have the results of what runs during an import.
        """
        left = list(tests)
        while left:
            verdict = self._verdict(mutant, left, is_imported=is_imported)
            if verdict.culprit is None:
                if verdict.status == 0:
                    return Outcome(mutant, SURVIVED)
                return self._without_verdict(mutant, left, verdict)
            test, result = verdict.culprit
            if self._is_steady(test) and (result == KILLED or self._fails_again(mutant, test, is_imported)):
                return Outcome(mutant, result, test)
            print(f"left out, the mutant is not why it failed: {test}", flush=True)
            left = _after(left, test)
        return Outcome(mutant, SURVIVED if tests else NOT_RUN)

    def _verdict(self, mutant: Mutant | None, tests: Sequence[str], *, is_imported: bool = False) -> Verdict:
        """Run tests in a fork if they were collected and the mutant's code can be replaced, or else in a process."""
        if self._stopped.is_set():
            raise Stopped
        if self._collected and self._forks is None:  # before anything is changed
            self._forks = Forks(self.path, self._collected, self._environment())
        (self.path / "verdict").unlink(missing_ok=True)
        with self._changed(mutant) as source:
            verdict = None if is_imported else self._fork(mutant, tests, source)
            if verdict is None:
                return self.pytest(tests)
        return verdict

    def _fork(self, mutant: Mutant | None, tests: Sequence[str], source: str) -> Verdict | None:
        if self._forks is None or not self._forks.tests.issuperset(tests):
            return None
        file = str(self.sources / mutant.file) if mutant is not None else ""
        answer = self._forks.ask({"file": file, "source": source, "tests": tests, "seconds": MUTANT_SECONDS_MAX})
        if self._stopped.is_set():
            raise Stopped
        return None if answer == Answer.UNCHANGED else self._noted(0 if answer == Answer.ENDED else -signal.SIGKILL)

    def pytest(self, tests: Sequence[str], *more: str, seconds: float | None = MUTANT_SECONDS_MAX) -> Verdict:
        """Run tests, ids or paths, in a process of their own, and return what happened."""
        return self._pytest(tests, ("-x", f"--timeout={TEST_SECONDS_MAX}", *more), self._environment(), seconds)

    def record(self, modules: Sequence[str], **settings: str) -> None:
        """Run test modules with the plugin that notes the lines, however long it takes."""
        more = ("-p", "tests.mutants.lines", f"--timeout={RECORDED_TEST_SECONDS_MAX}")
        self._pytest(modules, more, self._environment(**settings), None)

    def _pytest(
        self, tests: Sequence[str], more: Sequence[str], environment: dict[str, str], seconds: float | None
    ) -> Verdict:
        chosen = self.path / "chosen-tests"
        chosen.write_text("\n".join(tests))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *ARGUMENTS, *more, f"@{chosen}"],
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_cpu if seconds else None,
        )
        return self._noted(*self._wait(self._process, seconds))

    def _noted(self, status: int, output: str = "") -> Verdict:
        verdict, notes = Verdict(status, output=output), self.path / "verdict"
        for line in notes.read_text().splitlines() if notes.exists() else ():
            word, test = json.loads(line)
            if word == "begun":
                verdict.begun.append(test)
            elif word == "ended":
                verdict.ended.add(test)
            else:
                verdict.failed.setdefault(test, TIMED_OUT if word == "timed out" else KILLED)
        return verdict

    def _wait(self, process: subprocess.Popen[str], seconds: float | None) -> tuple[int, str]:
        output = ""
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_group(process.pid)
            self._process = None
        if self._stopped.is_set():
            raise Stopped
        return process.wait(), output

    def _is_steady(self, test: str) -> bool:
        """Return whether the test passes without a mutant."""
        if test not in self._steady:
            verdict = self._verdict(None, [test])
            if verdict.status != 0 or verdict.failed or test not in verdict.ended:
                return False
            self._steady.add(test)
        return True

    def _fails_again(self, mutant: Mutant, test: str, is_imported: bool) -> bool:
        """Return whether the test fails or hangs with the mutant when it runs alone, with its whole time limit."""
        return self._verdict(mutant, [test], is_imported=is_imported).culprit is not None

    def _without_verdict(self, mutant: Mutant, tests: Sequence[str], verdict: Verdict) -> Outcome:
        """Return the outcome where no test has begun: with the mutant the test modules cannot be imported."""
        if self._verdict(None, tests[:1]).status != 0:
            raise RuntimeError(f"pytest cannot run {tests[0]}, chosen for {mutant}: {verdict.output[-500:]}")
        return Outcome(mutant, BROKEN)

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant | None) -> Iterator[str]:
        """Change the mutant's file meanwhile. Yields its text without the mutant."""
        if mutant is None:
            yield ""
            return
        path = self.sources / mutant.file
        source, stat = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        try:
            yield source.decode()
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _environment(self, **more: str) -> dict[str, str]:
        paths = f"{self.path / 'src'}{os.pathsep}{self.path}"
        temporary = self.path / "t"  # short: tests make sockets below it
        temporary.mkdir(exist_ok=True)
        fixed = {"PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        fixed |= {"TMPDIR": str(temporary), "FLOWSTONE_VERDICT": str(self.path / "verdict")}
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
