"""Changes the broker's code in small ways and reports which changes the tests do not notice: `make mutants`.

A mutant is one change (`operators.py`). Of all mutants a seed picks some. For each, the tests that run the changed line
are run, those of the module's own test file first, then the quickest ones, until one fails. A mutant that none of them
notices is tested with LAST_TESTS at the end, which start brokers, clusters and workers as processes of their own.

Everything happens in a copy of the checkout in a temporary folder. Which test runs which line is found out once and
kept in `.cache/mutants/` for as long as sources and tests stay the same.

Mutants that change nothing anybody can observe are named in `judged.toml`, each with the reason; they are not run.

    python -m tests.mutants.run --count 300 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Mutant, find_mutants

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "replication", "coordinator", "cluster")
HOT_PATH = ("network/connection", "network/outbox", "network/receive_buffers", "network/unsent_bytes")
HOT_PATH += ("dispatch/dispatcher", "dispatch/deferred", "requests/parked", "requests/partition_lookup")
HOT_PATH += ("requests/batch_preparation", "requests/producer_admission", "handlers/produce", "handlers/fetch")
HOT_PATH += ("fetching/fetch_partitions", "fetching/fetch_sessions", "fetching/replica_reads", "loop/cold_reads")
# Tested against a real ZooKeeper only (tests/zookeeper).
LEFT_OUT = ("cluster/zookeeper",)
LINE_TESTS = ("tests/unit/log", "tests/unit/replication", "tests/unit/coordinator", "tests/unit/cluster")
LINE_TESTS += ("tests/unit/broker", "tests/unit/client", "tests/unit/test_promise.py", "tests/unit/test_embedded.py")
LINE_TESTS += tuple(f"tests/unit/test_embedded_{name}.py" for name in ("clock", "cluster", "faults", "groups", "modes"))
SIM_SEEDS = 12
LAST_TESTS = ("tests/hostile/test_batches.py", "tests/hostile/test_requests.py", "tests/sim/test_simulation.py")
# What runs only in the log's worker processes is recorded for no test.
LAST_TESTS += (
    "tests/unit/log/test_worker_loop.py",
    "tests/unit/log/test_scrubber.py",
    "tests/unit/log/test_cleaner.py",
)

# Only these are loaded: the others take twice as long to start as a test takes to run.
PLUGINS = ("no:cacheprovider", "pytest_timeout", "_hypothesis_pytestplugin", "flowstone.pytest_plugin")
COPIED = ("src", "tests", "docs", "bench", "scripts", "examples", "deploy", "pyproject.toml", "README.md", "Makefile")
TEST_SECONDS_MAX = 25.0  # of the tests that run a line, those are left out that would take longer in sum
CPU_SECONDS_MAX = 200
WALL_SECONDS_MAX = 900  # on a busy machine; a test of its own may take TEST_TIMEOUT_S
TEST_TIMEOUT_S = 60
KILLED_PERCENT_MIN = 97.0
# Exit statuses of pytest: a test that does not exist, or none at all. They say nothing about a mutant.
NOTHING_RAN = (4, 5)

KILLED, SURVIVED, TIMED_OUT, NOT_RUN = "killed", "survived", "timed out", "run by no test"

_LINE_NUMBER = re.compile(r":\d+ ")


@dataclass
class Lines:
    """Which tests run which lines."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the mutant's line: its module's own first, then the quickest."""
        lines = self.lines.get(mutant.file, {})
        numbers = lines.get(str(mutant.line)) or lines.get(str(mutant.statement_line)) or []
        own = f"test_{Path(mutant.file).stem}.py::"
        chosen, total = [], 0.0
        for number in sorted(set(numbers), key=lambda each: (own not in self.tests[each], self.seconds[each])):
            total += self.seconds[number]
            if chosen and total > TEST_SECONDS_MAX:
                break
            chosen.append(self.tests[number])
        return chosen


@dataclass
class Outcome:
    mutant: Mutant
    result: str
    test: str = ""  # the one that failed

    def __str__(self) -> str:
        return f"{self.result}: {self.mutant} {self.test}".rstrip()


class Copy:
    """A copy of the checkout in which one mutant at a time is tested."""

    def __init__(self, path: Path) -> None:
        self.path, self.sources = path, path / "src" / "flowstone"
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("*.pyc.*", ".pytest_cache"))
            else:
                shutil.copy2(source, path / name)

    def environment(self, **more: str) -> dict[str, str]:
        paths = f"{self.path / 'src'}{os.pathsep}{self.path}"
        return {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}

    def pytest(self, *arguments: str, seconds: float | None, **more: str) -> tuple[int | None, str]:
        """Return pytest's exit status and output; the status is None if it took too long."""
        plugins = [word for name in PLUGINS for word in ("-p", name)]
        fixed = (*plugins, "--hypothesis-seed=0", f"--timeout={TEST_TIMEOUT_S}", "-q", "--no-header")
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *fixed, *arguments],
            cwd=self.path,
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_limit_cpu if seconds else None,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            _end_group(process.pid)
        timed_out = process.poll() is None or process.returncode == -signal.SIGXCPU
        process.wait()
        return None if timed_out else process.returncode, output

    def test(self, mutant: Mutant, tests: Sequence[str]) -> Outcome:
        """Run the tests with the mutant in place of the original."""
        if not tests:
            return Outcome(mutant, NOT_RUN)
        path = self.sources / mutant.file
        source, stat = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        try:
            return self._run(mutant, tests)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _run(self, mutant: Mutant, tests: Sequence[str]) -> Outcome:
        chosen = self.path / "chosen-tests"
        chosen.write_text("\n".join(tests))
        settings = {"FLOWSTONE_SIM_SEEDS": str(SIM_SEEDS), "PYTHONDONTWRITEBYTECODE": "1"}
        status, output = self.pytest("-x", f"@{chosen}", seconds=WALL_SECONDS_MAX, **settings)
        if status is None:
            return Outcome(mutant, TIMED_OUT)
        if status == 0:
            return Outcome(mutant, SURVIVED)
        if status in NOTHING_RAN:
            raise RuntimeError(f"pytest ran no test of {mutant}: {output[-500:]}")
        failed = [line for line in output.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        return Outcome(mutant, KILLED, failed[0].split(" ", 1)[1] if failed else f"exit status {status}")


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX + 5))


def _end_group(leader_pid: int) -> None:
    """Ends what a test run has started and left: a mutant may have made it forget its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader_pid, signal.SIGKILL)


def sources() -> list[str]:
    """Return the files that are changed, relative to src/flowstone."""
    base = ROOT / "src" / "flowstone"
    files = [path for package in PACKAGES for path in (base / package).rglob("*.py")]
    files += [base / "broker" / f"{name}.py" for name in HOT_PATH]
    names = sorted(str(path.relative_to(base)) for path in files)
    return [name for name in names if not name.startswith(LEFT_OUT)]


def fingerprint() -> str:
    """Return a digest of everything that decides which test runs which line."""
    digest = hashlib.sha256(repr(LINE_TESTS).encode())
    for folder in ("src", "tests/support", *LINE_TESTS):
        for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]:
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read_lines(copy: Copy) -> Lines:
    """Return which tests run which lines, from the cache or by running all tests once."""
    path = ROOT / ".cache" / "mutants" / f"lines-{fingerprint()}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        print("running all tests once, to see which lines each of them runs", flush=True)
        part = path.with_suffix(".part")
        recording = {"FLOWSTONE_LINES": f"{part}{os.pathsep}{copy.sources}"}
        _, output = copy.pytest("-p", "tests.mutants.lines", *LINE_TESTS, seconds=None, **recording)
        print(*output.splitlines()[-5:], sep="\n", flush=True)
        for old in path.parent.glob("lines-*.json"):
            old.unlink()
        part.rename(path)
    return Lines(**json.loads(path.read_text()))


def read_judged() -> dict[tuple[str, str, str], str]:
    """Return the reasons why mutants cannot be noticed, by file, function and change."""
    with Path(__file__).with_name("judged.toml").open("rb") as file:
        judged = tomllib.load(file).get("equivalent", [])
    return {(each["file"], each["function"], each["change"]): each["reason"] for each in judged}


def pick(count: int, seed: int) -> list[Mutant]:
    """Return that many mutants of all that can be made, chosen by `rank`.

    A mutant's rank depends on itself and the seed alone: after a change elsewhere nearly the same are picked.
    """
    base = ROOT / "src" / "flowstone"
    mutants = [mutant for file in sources() for mutant in find_mutants(file, (base / file).read_bytes())]
    stale = set(read_judged()) - {(mutant.file, mutant.function, mutant.change) for mutant in mutants}
    for file, function, change in sorted(stale):
        print(f"the code has changed: remove from judged.toml {file} {function}: {change}")
    print(f"{len(mutants)} mutants can be made; {min(count, len(mutants))} are picked by seed {seed}", flush=True)
    return sorted(mutants, key=lambda mutant: rank(mutant, seed))[:count]


def rank(mutant: Mutant, seed: int) -> bytes:
    """Return a number that is random but the same in every run, and while the mutant's lines move."""
    return hashlib.sha256("\0".join((str(seed), mutant.file, mutant.function, mutant.change)).encode()).digest()


def unnoticed(log: str) -> set[str]:
    """Return what earlier output names as not noticed, without line numbers."""
    return {
        _LINE_NUMBER.sub(" ", line.partition(f"{result}: ")[2], count=1)
        for line in log.splitlines()
        for result in (SURVIVED, NOT_RUN)
        if f"{result}: " in line
    }


def report(outcomes: list[Outcome], judged_count: int, seconds: float) -> bool:
    """Print what was not noticed and the sums; return whether enough was."""
    counts = Counter(outcome.result for outcome in outcomes)
    for result in (TIMED_OUT, NOT_RUN, SURVIVED):
        for outcome in outcomes:
            if outcome.result == result:
                print(outcome)
    noticed = counts[KILLED] + counts[TIMED_OUT]
    percent = 100 * noticed / max(1, len(outcomes))
    sums = ", ".join(f"{counts[each]} {each}" for each in (KILLED, TIMED_OUT, SURVIVED, NOT_RUN))
    print(f"{len(outcomes)} mutants in {seconds / 60:.0f} minutes: {sums}; {judged_count} judged equivalent, not run")
    print(f"{percent:.1f} % noticed; at least {KILLED_PERCENT_MIN:.0f} % are wanted")
    return percent >= KILLED_PERCENT_MIN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="begin with this one, after a round was stopped")
    parser.add_argument("--only", default="", help="only mutants whose file, line or change contains this text")
    parser.add_argument("--again", type=Path, help="only what this output of an earlier run names as not noticed")
    options = parser.parse_args()
    judged = read_judged()
    picked = [mutant for mutant in pick(options.count, options.seed) if options.only in str(mutant)]
    if options.again is not None:
        names = unnoticed(options.again.read_text())
        picked = [mutant for mutant in picked if _LINE_NUMBER.sub(" ", str(mutant), count=1) in names]
    to_run = [mutant for mutant in picked if (mutant.file, mutant.function, mutant.change) not in judged]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="flowstone-mutants-") as folder:
        copy = Copy(Path(folder))
        lines = read_lines(copy)
        began = time.monotonic()
        for number, mutant in list(enumerate(to_run, start=1))[options.first - 1 :]:
            outcomes.append(copy.test(mutant, lines.tests_of(mutant)))
            print(f"[{number}/{len(to_run)}] {outcomes[-1]}", flush=True)
        for number, outcome in enumerate(outcomes):
            if outcome.result in (SURVIVED, NOT_RUN):
                last = copy.test(outcome.mutant, LAST_TESTS)
                outcomes[number] = outcome if last.result == SURVIVED else last
                print(f"once more, with whole processes: {last}", flush=True)
    return 0 if report(outcomes, len(picked) - len(to_run), time.monotonic() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
