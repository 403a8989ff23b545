"""The order of `make test`: what runs alone, what a part leaves for the repetition, and how times are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import test_all as script

from tests.conftest import LONG, TESTS, rank

ROOT = Path(__file__).parents[2]


def test_modules_with_the_marker_are_found_and_only_modules_have_it() -> None:
    found = script.files_with_marker(TESTS)
    assert str(TESTS / "hostile/test_loop_stretches.py") in found
    elsewhere = [path for path in TESTS.rglob("*.py") if f"mark.{script.MARKER}" in path.read_text(encoding="utf-8")]
    assert sorted(map(str, elsewhere)) == found, "the marker of a conftest.py would not be found"


def test_the_directories_with_spark_exist() -> None:
    assert [path for paths in script.SPARK.values() for path in paths if not (ROOT / path).is_dir()] == []


def test_long_modules_come_first_and_unit_tests_last() -> None:
    assert [each for each in LONG if not (TESTS / each).exists()] == []
    modules = ["unit/wire/test_frames.py", "zookeeper/test_log.py", "sim/test_simulation.py", "unit/cli/test_fuzz.py"]
    assert sorted(modules, key=rank) == [modules[2], modules[3], modules[1], modules[0]]


RUN = "import pathlib, sys; from scripts import test_all as t; t.ROOT = pathlib.Path.cwd(); sys.exit(t.main())"
PROJECT = {
    "Makefile": "lint:\n\t@echo lint ran\n",
    "pytest.ini": "[pytest]\nmarkers = measures_time\n",
    "tests/spark/test_a.py": "def test_with_spark(): pass\n",
    "tests/spark_examples/test_b.py": "def test_with_spark(): pass\n",
    "tests/spark_pipeline/test_c.py": "def test_with_spark(): pass\n",
    "tests/unit/test_d.py": "def test_other(): pass\n",
    "tests/unit/test_e.py": (
        "import pytest\n\n@pytest.mark.measures_time\ndef test_alone(): pass\n\ndef test_beside_others(): pass\n"
    ),
}


def test_all_parts_run_and_the_time_of_each_is_printed(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lint ran" in done.stdout
    passed = sorted(line.partition(" passed")[0].strip("= ") for line in done.stdout.splitlines() if " passed" in line)
    assert passed == ["1", "1", "2", "2"], "alone, pipelines, others, Spark"
    parts = [line.rpartition("  ")[2] for line in done.stdout.splitlines() if line.startswith("time: ")]
    assert parts[:2] == ["all after set-up", "lint"]
    assert {part.removesuffix(" (side by side)") for part in parts[2:5]} == {
        "tests: Spark source and sink",
        "tests: pipelines",
        "tests: others",
    }
    assert parts[5:] == ["tests that measure time", "tests that are repeated"]


def test_a_part_leaves_the_names_of_its_failures(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_bad(): assert False\n\ndef test_good(): pass\n")
    command = [sys.executable, script.__file__, "--once", "failures.json", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stderr
    assert json.loads((tmp_path / "failures.json").read_text()) == ["test_it.py::test_bad"]
    assert "1 failed, 1 passed" in done.stdout


def test_a_part_that_ends_without_a_result_has_failed(tmp_path: Path) -> None:
    part = script.Part("broken", ["--no-such-option"], tmp_path, is_shown=False)
    assert part.finish().code == pytest.ExitCode.USAGE_ERROR
    (tmp_path / "broken.json").unlink()
    assert part.finish().code


def test_tests_write_bytecode_and_spark_starts_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in script.environment()
    assert Path(script.environment()["SPARK_CONF_DIR"], "spark-defaults.conf").is_file()


@pytest.mark.parametrize(("seconds", "expected"), [(59.4, "59 s"), (60.0, "1 min  0 s"), (754.6, "12 min 35 s")])
def test_times_are_shown_in_minutes_and_seconds(seconds: float, expected: str) -> None:
    assert script.shown(seconds) == expected
