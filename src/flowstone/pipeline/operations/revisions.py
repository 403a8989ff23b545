"""Another version of a pipeline's directory: a second directory, or a revision of the git repository that it is in."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from flowstone.pipeline.errors import PipelineError

GIT_TIMEOUT_S = 60.0
FILES_MAX = 10_000
BYTES_MAX = 256 * 2**20


@contextmanager
def version(directory: Path, other: str) -> Iterator[Path]:
    """Yield the directory of the other version, which for a revision is a temporary copy.

    Raises PipelineError if `other` is neither a directory nor a revision that has the pipeline.
    """
    if Path(other).is_dir():
        yield Path(other)
        return
    root = Path(_git(directory, "rev-parse", "--show-toplevel", why=f"{other} is no directory, and").decode().strip())
    inside = directory.resolve().relative_to(root.resolve()).as_posix()
    path = "." if inside == "." else inside
    revision = _git(directory, "rev-parse", "--verify", "--end-of-options", f"{other}^{{commit}}", why="")
    archive = _git(root, "archive", "--format=tar", revision.decode().strip(), path, why=f"{other} has no {inside}:")
    with TemporaryDirectory(prefix="flowstone-revision-") as work:
        # The same name, because modules are named after the directory.
        place = Path(work) if inside == "." else Path(work, inside)
        _unpack(archive, Path(work))
        yield place


def _git(directory: Path, *arguments: str, why: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{why} git cannot be run: {error}".strip()) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise PipelineError(f"{why} git says: {said[-1] if said else arguments[0]}".strip())
    return done.stdout


def _unpack(archive: bytes, target: Path) -> None:
    """Write the files of an archive. Links and anything outside the target are left out."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = files.getmembers()
        if len(members) > FILES_MAX or sum(each.size for each in members) > BYTES_MAX:
            raise PipelineError(f"the revision of the pipeline has more than {FILES_MAX} files or {BYTES_MAX} bytes")
        for each in members:
            path = PurePosixPath(each.name)
            source = files.extractfile(each) if each.isfile() else None
            if source is None or path.is_absolute() or ".." in path.parts:
                continue
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read())
