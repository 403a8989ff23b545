"""Locations of Iceberg tables: a catalog that options describe, or a directory with its own catalog in SQLite.

A sink's path names the table. With options it is `namespace.table` in the catalog that they describe, as pyiceberg's
`load_catalog` takes them; `catalog` is the catalog's name. Without options it is `directory/namespace.table`: the
tables are below the directory, and its file CATALOG_FILE is the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables.storage import location

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG_FILE = "catalog.db"
CATALOG_NAME = "flowstone"
DEFAULT_NAMESPACE = "default"
CATALOG_OPTION = "catalog"
ATTEMPTS_MAX = 3


@dataclass(frozen=True)
class Place:
    """A table's catalog and its name there. `file` is the catalog's own file, if it is in a directory."""

    identifier: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    file: Path | None

    def load(self) -> Table | None:
        """Return a handle of the newest version, or None if there is no table. Writes nothing."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if self.file is not None and not self.file.exists():
            return None
        try:
            return self.open().load_table(self.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def open(self) -> Catalog:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        return _open(self.options)

    def create(self, schema: Any, partition_by: tuple[str, ...], properties: Mapping[str, str]) -> Table:
        """Create the table, or return the one that another writer created meanwhile."""
        catalog = self.open()
        error: Exception | None = None
        for _attempt in range(ATTEMPTS_MAX):
            try:
                catalog.create_namespace_if_not_exists(self.identifier[:-1])
                with catalog.create_table_transaction(self.identifier, schema, properties=dict(properties)) as creation:
                    _partition(creation, partition_by)
            except Exception as raised:  # each catalog's library has errors of its own for what is there already
                error = raised
            table = self.load()
            if table is not None:
                return table
        raise PipelineError(f"{'.'.join(self.identifier)}: the Iceberg table cannot be created: {error}") from error


def _partition(creation: Any, partition_by: tuple[str, ...]) -> None:
    if partition_by:
        with creation.update_spec() as partitioning:
            for name in partition_by:
                partitioning.add_identity(name)


def place(path: str, options: Mapping[str, str]) -> Place:
    """Return where a table is. Raises PipelineError if the path does not name one."""
    directory, _slash, name = path.rpartition("/")
    if options:
        if directory or "." not in path:
            raise PipelineError(
                f"{path}: with a catalog's options a table's name is namespace.table, without directory"
            )
        return Place(tuple(path.split(".")), tuple(sorted(options.items())), None)
    if not directory:
        raise PipelineError(
            f"{path}: name an Iceberg table by its directory, such as lake/{path}, or give the options of its catalog, "
            'such as type="rest" and uri'
        )
    where = location(directory)
    if not where.is_local:
        raise PipelineError(f"{path}: a catalog in SQLite needs a local directory; otherwise give a catalog's options")
    file = Path(where.uri) / CATALOG_FILE
    identifier = tuple(name.split(".")) if "." in name else (DEFAULT_NAMESPACE, name)
    own = {"type": "sql", "uri": f"sqlite:///{file}", "warehouse": f"file://{where.uri}"}
    return Place(identifier, tuple(sorted(own.items())), file)


_opened: dict[tuple[tuple[str, str], ...], Catalog] = {}
_opening = Lock()


def _open(options: tuple[tuple[str, str], ...]) -> Catalog:
    """Return the catalog, which is opened once in a process. Raises PipelineError if it cannot be opened."""
    from pyiceberg.catalog import load_catalog

    with _opening:
        if options in _opened:
            return _opened[options]
        properties = dict(options)
        name = properties.pop(CATALOG_OPTION, CATALOG_NAME)
        error: Exception | None = None
        # A catalog in SQLite is made by the first that opens it, and fails for one that opens it at the same time.
        for _attempt in range(ATTEMPTS_MAX):
            try:
                return _opened.setdefault(options, load_catalog(name, **properties))
            except Exception as raised:  # whatever the catalog's own library raises
                error = raised
        raise PipelineError(f"the Iceberg catalog {name} cannot be opened: {error}") from error
