"""Downloads a schema registry (Apicurio, with Confluent's API) from Maven Central into the cache folder, for tests.

Owns the folders, one for each version: `registry_jar()` is the jar to start. Java 17 runs it. Unless told otherwise, a
registry keeps its schemas in memory. The archive is downloaded by its address; Maven is asked if that fails, because it
knows the mirrors of a machine, but needs the description of the project too, which not every mirror has.

Invariant, as in `fetch_kafka`: the folder is renamed into place after everything is in it.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.fetch_kafka import FetchError, cache_folder, fetch_artifact, put_in_place, run_fetch  # noqa: E402

CENTRAL = "https://repo.maven.apache.org/maven2/io/apicurio/apicurio-registry-app"
TIMEOUT_S = 60
BLOCK_BYTES = 1 << 20
REGISTRY_VERSION = "2.6.13.Final"
# Where its Confluent API is, below the address of the server.
API_PATH = "/apis/ccompat/v7"


def registry_folder(version: str) -> Path:
    """Return the folder of the registry, whether or not it exists."""
    return cache_folder().parent / f"apicurio-registry-{version}"


def registry_jar(version: str = REGISTRY_VERSION) -> Path:
    """Return the jar of the registry, downloading it if needed. Raises FetchError if that fails."""
    folder = registry_folder(version)
    if not folder.is_dir():
        _fetch_into(folder, version)
    return next(folder.rglob(_runner(version)))


def _runner(version: str) -> str:
    return f"apicurio-registry-app-{version}-runner.jar"


def _fetch_into(folder: Path, version: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        unpacked = Path(work, "unpacked")
        try:
            download(f"{CENTRAL}/{version}/apicurio-registry-app-{version}-all.tar.gz", Path(work))
        except OSError:
            fetch_artifact(f"io.apicurio:apicurio-registry-app:{version}:tar.gz:all", Path(work))
        for archive in Path(work).glob("*.tar.gz"):
            unpacked.mkdir()
            run_fetch(["tar", "-xzf", str(archive), "-C", str(unpacked)], archive.name)
        if not list(unpacked.rglob(_runner(version))):
            raise FetchError(f"Maven reported success but {_runner(version)} is not among what it fetched")
        put_in_place(unpacked, folder)


def download(url: str, into: Path) -> None:
    """Write a file of a Maven repository into a directory. Raises OSError if it cannot, or its SHA-1 is another."""
    with urllib.request.urlopen(f"{url}.sha1", timeout=TIMEOUT_S) as answer:
        wanted = answer.read().decode().split()[0]
    found = hashlib.sha1(usedforsecurity=False)
    partial = into / "partial"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, partial.open("wb") as file:
        while block := answer.read(BLOCK_BYTES):
            found.update(block)
            file.write(block)
    if found.hexdigest() != wanted:
        raise OSError(f"{url} has another SHA-1 than its repository says")
    partial.rename(into / url.rpartition("/")[2])


def main() -> int:
    try:
        print(registry_jar())
    except FetchError as error:
        print(f"fetch_registry: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
