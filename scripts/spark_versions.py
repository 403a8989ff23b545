"""Runs the tests of the Spark source and sink on the newest release of each supported line of PySpark.

Each version has an environment of its own below .cache/spark-versions, which is made on first use. Prints a line for
each version; the output of pytest is in a log beside the environment. With --quick only a few tests run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".cache" / "spark-versions"
VERSIONS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
# What the tests import besides the package; pandas is what PySpark 4.0 needs for exactly_once.
PACKAGES = ("pytest==9.2.0", "pytest-timeout>=2.3", "hypothesis>=6.100", "pandas>=2,<3")
TESTS = ("tests/unit/spark", "tests/spark")
QUICK = (
    "tests/unit/spark/versions",
    "tests/spark/test_available_now.py",
    "tests/spark/test_stream.py::test_what_is_there_is_read_once_and_later_only_what_came_since",
    "tests/spark/test_stream.py::test_a_batch_takes_no_more_offsets_than_allowed",
    "tests/spark/test_sink_streams.py::test_a_query_writes_each_row_once_over_several_batches",
    "tests/spark/test_groups.py::test_a_query_that_ends_has_committed_its_last_batch",
    "tests/spark/test_kills.py::test_a_kill_of_an_exactly_once_query_repeats_nothing",
)
TIMEOUT_S = 3600
# PySpark before 4.2 leaves the sockets of collected rows to the garbage collector.
WARNINGS = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


@dataclass(frozen=True)
class Outcome:
    version: str
    is_passed: bool
    summary: str
    seconds: float

    def __str__(self) -> str:
        return f"PySpark {self.version}: {'ok' if self.is_passed else 'FAILED'}, {self.summary}, {self.seconds:.0f} s"


def python_of(version: str) -> Path:
    """Return the Python of the version's environment, which is made or completed first."""
    python = ENVIRONMENTS / version / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENTS / version, with_pip=True)
    install = [str(python), "-m", "pip", "install", "-q", "-e", f"{ROOT}[spark]", f"pyspark=={version}", *PACKAGES]
    stamp, wanted = ENVIRONMENTS / version / "installed", " ".join(install) + (ROOT / "pyproject.toml").read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return python


def run(version: str, tests: tuple[str, ...]) -> Outcome:
    """Run the tests on one version of PySpark, without plugins of this environment."""
    python, log = python_of(version), ENVIRONMENTS / f"{version}.log"
    environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *WARNINGS, *tests]
    with log.open("w") as output:
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=TIMEOUT_S, check=False
        ).returncode
    return Outcome(version, code == 0, summary_of(log.read_text()), time.monotonic() - started)


def summary_of(text: str) -> str:
    """Return the counts in the last line of pytest's output, without its duration."""
    lines = text.strip().splitlines() or ["no output"]
    counts: list[str] = re.findall(r"\d+ (?:passed|failed|skipped|errors?|xfailed)", lines[-1])
    return ", ".join(counts) or lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few tests only")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="versions of PySpark, separated by commas")
    parser.add_argument("tests", nargs="*", help="other tests than the usual ones")
    given = parser.parse_args()
    tests = tuple(given.tests) or (QUICK if given.quick else TESTS)
    outcomes = []
    for version in given.versions.split(","):
        outcomes.append(run(version, tests))
        print(outcomes[-1], flush=True)
    failed = [each.version for each in outcomes if not each.is_passed]
    if failed:
        print(f"see {', '.join(str((ENVIRONMENTS / f'{each}.log').relative_to(ROOT)) for each in failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
