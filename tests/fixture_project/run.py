"""`make fixture`: the pytest plugin as another project gets it.

Makes an environment that has nothing in it, installs Flowstone from the repository as a user would (a wheel, not the
working tree) and the project's own needs, and runs its tests there: in one process, then in two with pytest-xdist.

    python tests/fixture_project/run.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

PROJECT = Path(__file__).parent
REPOSITORY = PROJECT.parents[1]
RUNS = (("-rP",), ("-n", "2"))
TIMEOUT_S = 600
# Loaded by the plugin in a project that does not use it.
FORBIDDEN = ("pyspark", "typer", "flowstone.embedded")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="flowstone-fixture-") as directory:
        environment = Path(directory, "environment")
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
        project = Path(directory, "project")
        shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__", Path(__file__).name))
        needs = tomllib.loads((project / "pyproject.toml").read_text())["dependency-groups"]["test"]
        needs = [str(REPOSITORY) if need == "flowstone" else need for need in needs]
        _run([python, "-m", "pip", "install", "-q", *needs], directory)
        _run([python, "-c", _CHECK_IMPORTS], directory)
        for options in RUNS:
            print(f"$ pytest {' '.join(options)}", flush=True)
            if _run([python, "-m", "pytest", *options], str(project), check=False):
                return 1
    return 0


_CHECK_IMPORTS = f"""
import sys, flowstone.pytest_plugin
loaded = sorted(set({FORBIDDEN!r}) & set(sys.modules))
sys.exit(f"the plugin loads {{loaded}}" if loaded else 0)
"""


def _run(command: list[str], directory: str, *, check: bool = True) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    return subprocess.run(command, cwd=directory, env=kept, timeout=TIMEOUT_S, check=check).returncode


if __name__ == "__main__":
    sys.exit(main())
