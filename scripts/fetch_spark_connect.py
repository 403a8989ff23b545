"""Installs what Spark Connect needs beside PySpark into the cache folder, for the example of Declarative Pipelines.

`connect_packages()` is a folder for PYTHONPATH. The packages are kept out of the project's own environment, where
pipelines have to work without pandas.

Invariant, as in `fetch_kafka`: the folder is renamed into place after everything is in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.fetch_kafka import FetchError, cache_folder  # noqa: E402

PACKAGES = ("pandas>=2.2", "grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "zstandard>=0.25")
INSTALL_TIMEOUT_S = 600
ERROR_CHARACTERS_MAX = 500


def connect_packages() -> Path:
    """Return the folder of the packages, installing them if needed. Raises FetchError if that fails."""
    folder = cache_folder().parent / f"spark-connect-{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
            packages = Path(work, "packages")
            _install(packages)
            try:
                packages.rename(folder)
            except OSError:
                if not folder.is_dir():  # another caller has created the folder, equally complete
                    raise
    return folder


def _install(target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(target)]
    try:
        done = subprocess.run(
            [*command, *PACKAGES], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip took more than {INSTALL_TIMEOUT_S} s to install {', '.join(PACKAGES)}") from error
    if done.returncode:
        raise FetchError(f"pip could not install {', '.join(PACKAGES)}: {done.stderr[-ERROR_CHARACTERS_MAX:]}")


if __name__ == "__main__":
    print(connect_packages())
