"""Downloads a schema registry (Apicurio, with Confluent's API) from Maven Central into the cache folder, for tests.

Owns the folder: `registry_jar()` is the jar to start. Java 17 runs it, with the schemas in memory.

Invariant, as in `fetch_kafka`: the folder is renamed into place after everything is in it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.fetch_kafka import FetchError, cache_folder, fetch_artifact, put_in_place, run_fetch  # noqa: E402

REGISTRY_VERSION = "2.6.13.Final"
ARCHIVE = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
RUNNER = f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"
# Where its Confluent API is, below the address of the server.
API_PATH = "/apis/ccompat/v7"


def registry_folder() -> Path:
    """Return the folder of the registry, whether or not it exists."""
    return cache_folder().parent / f"apicurio-registry-{REGISTRY_VERSION}"


def registry_jar() -> Path:
    """Return the jar of the registry, downloading it if needed. Raises FetchError if that fails."""
    folder = registry_folder()
    if not folder.is_dir():
        _fetch_into(folder)
    return next(folder.rglob(RUNNER))


def _fetch_into(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        unpacked = Path(work, "unpacked")
        fetch_artifact(ARCHIVE, Path(work))
        for archive in Path(work).glob("*.tar.gz"):
            unpacked.mkdir()
            run_fetch(["tar", "-xzf", str(archive), "-C", str(unpacked)], ARCHIVE)
        if not list(unpacked.rglob(RUNNER)):
            raise FetchError(f"Maven reported success but {RUNNER} is not among what it fetched")
        put_in_place(unpacked, folder)


def main() -> int:
    try:
        print(registry_jar())
    except FetchError as error:
        print(f"fetch_registry: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
