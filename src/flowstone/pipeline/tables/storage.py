"""Locations of tables: local paths and URIs of object stores.

A path without a scheme is local; one that is relative counts from the driver's working directory. Spark's tasks write
with Arrow's file systems, which take their credentials from the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FILE_SCHEME = "file://"


@dataclass(frozen=True)
class Location:
    """A directory. Unlike a file system of Arrow, it can be sent to Spark's tasks."""

    uri: str  # for the libraries of the table formats: a local path has no scheme

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    def open(self) -> tuple[FileSystem, str]:
        """Return the file system and the directory's path in it. Raises PipelineError if Arrow does not know it."""
        import pyarrow as pa
        from pyarrow import fs

        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        try:
            system, path = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise PipelineError(f"{self.uri}: this file system cannot be used: {error}") from error
        return system, path


def location(path: str) -> Location:
    """Return the location of a table's directory."""
    if path.startswith(FILE_SCHEME):
        path = path.removeprefix(FILE_SCHEME)
    return Location(path.rstrip("/") if "://" in path else str(Path(path).absolute()))
