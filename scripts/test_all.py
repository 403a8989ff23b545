"""Runs what `make test` runs, in an order that keeps two processors busy, and prints how long each part took.

1. `make lint`, beside a collection of all tests that leaves their bytecode for the parts below.
2. The tests with Spark in two processes, each with one session that they share, beside all others in WORKERS processes.
3. The tests that measure time, one by one, with nothing beside them: those with the marker `measures_time`.

A few tests of each part that fail are repeated at the end (scripts/run_tests.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:  # run as a program
    sys.path.insert(0, str(ROOT))

from scripts.run_tests import Result, repeat, run_once  # noqa: E402 - after the path is set

MARKER = "measures_time"
# By the name of the process that runs them.
SPARK = {
    "Spark source and sink": ("tests/spark", "tests/spark_examples"),
    "pipelines": ("tests/spark_pipeline",),
}
SPARK_CONFIGURATION = ROOT / "tests/support/spark_conf"
WORKERS = 3
TOGETHER = ("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder")
POLL_S = 0.2
INTERRUPTED = 2  # the exit code of pytest for the same


class Times:
    """How long each part took, in the order in which the parts ended."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, float]] = []
        self._began_s = time.monotonic()

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.add(part, time.monotonic() - began_s)

    def add(self, part: str, took_s: float) -> None:
        self._parts.append((part, took_s))

    def report(self) -> str:
        lines = [("all after set-up", time.monotonic() - self._began_s), *self._parts]
        return "\n".join(f"time: {shown(took_s):>12}  {part}" for part, took_s in lines)


def shown(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:2} s" if minutes else f"{rest} s"


class Part:
    """A run of pytest in a process of its own, which leaves the names of the tests that failed in a file."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, *, is_shown: bool) -> None:
        """What a part that is not shown prints is kept until `finish`."""
        self.name, self.took_s = name, 0.0
        self._failures, self._output = directory / f"{name}.json", directory / f"{name}.txt"
        self._began_s = time.monotonic()
        with self._output.open("wb") as kept:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--once", str(self._failures), *arguments],
                cwd=ROOT,
                env=environment(),
                stdout=None if is_shown else kept,
                stderr=None if is_shown else subprocess.STDOUT,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        code = self._process.wait()
        self.took_s = time.monotonic() - self._began_s
        return code

    def finish(self) -> Result:
        """Wait for the end, show what was kept and return the result."""
        code = self.wait()
        print(self._output.read_text(encoding="utf-8", errors="replace"), end="", flush=True)
        try:
            return Result(code, json.loads(self._failures.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return Result(code or INTERRUPTED, [])


def environment() -> dict[str, str]:
    """Return the environment of tests: Python writes the bytecode of their modules, and Spark's JVMs start quickly."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "SPARK_CONF_DIR": str(SPARK_CONFIGURATION)}


def files_with_marker(directory: Path) -> list[str]:
    """Return the test modules that use the marker, which need not be looked for in all others."""
    found = [file for file in directory.rglob("test_*.py") if f"mark.{MARKER}" in file.read_text(encoding="utf-8")]
    return sorted(str(file) for file in found)


def main() -> int:
    # A shell in the background may have had it ignored, which the tests of Ctrl-C would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    times = Times()
    with tempfile.TemporaryDirectory(prefix="flowstone-tests-") as directory:
        try:
            return test(Path(directory), times)
        finally:
            print(times.report(), flush=True)


def test(directory: Path, times: Times) -> int:
    """Run all parts; return 0 if lint and every test passed."""
    with times.measure("lint"):
        collection = Part("collection", ["tests", "--collect-only", "-q"], directory, is_shown=False)
        lint = subprocess.run(["make", "lint"], cwd=ROOT, check=False)
        collection.wait()
    if lint.returncode:
        return lint.returncode
    results = side_by_side(directory, times)
    with times.measure("tests that measure time"):
        alone = Part("alone", [*files_with_marker(ROOT / "tests"), "-m", MARKER], directory, is_shown=True)
        results.append(alone.finish())
    with times.measure("tests that are repeated"):
        return max(repeat(result) for result in results)


def side_by_side(directory: Path, times: Times) -> list[Result]:
    """Run all tests that do not measure time, in several processes."""
    chosen = ("-m", f"not {MARKER}")
    running = [Part(name, [*paths, *chosen], directory, is_shown=False) for name, paths in SPARK.items()]
    ignored = [f"--ignore={path}" for paths in SPARK.values() for path in paths]
    running.append(Part("others", ["tests", *ignored, *TOGETHER, *chosen], directory, is_shown=True))
    results = []
    while running:
        for part in [part for part in running if not part.is_running]:
            running.remove(part)
            results.append(part.finish())
            times.add(f"tests: {part.name} (side by side)", part.took_s)
        time.sleep(POLL_S)
    return results


def once(failures: Path, arguments: list[str]) -> int:
    """Run pytest, and leave the names of the tests that failed in a file."""
    result = run_once(arguments)
    failures.write_text(json.dumps(result.failures), encoding="utf-8")
    return result.code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        sys.exit(once(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
