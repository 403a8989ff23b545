"""The log directories of one broker, opened together: which belong to this broker, and which of them can be used.

A broker needs one good directory. One whose disk fails, or whose meta.properties is damaged, stays out, with the
reason; one that belongs to another node or cluster, or is in use, is a mistake that the operator must correct first.

A disk that is not mounted leaves an empty directory, which looks like a new one. So every directory remembers the ids
of all of them: as long as one is missing, an empty directory may be where it belongs, and is not touched.

Waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from flowstone.errors import StartupError, StorageFault
from flowstone.log.lifecycle.directory_identity import Identity, LogDirectory, new_directory_id
from flowstone.ports.files import Files

logger = logging.getLogger(__name__)


class OpenedDirectories(NamedTuple):
    good: list[LogDirectory]  # locked, and with an identity
    bad: dict[str, StorageFault]  # the reason for each path that cannot be used
    missing_ids: frozenset[str]  # the ids of directories that the broker has had and that are not usable now
    is_new: bool  # none of them belonged to a broker before

    @property
    def identity(self) -> Identity:
        """Return the identity of the first directory: all have the same cluster and node."""
        identity = self.good[0].identity
        assert identity is not None
        return identity


def open_directories(files: Files, paths: Sequence[str], node_id: int, cluster_id: str | None) -> OpenedDirectories:
    """Open a broker's directories, of any cluster if `cluster_id` is None. Raises StartupError if they are no good."""
    opening = _Opening(files, node_id, cluster_id)
    try:
        return opening.run(paths)
    except BaseException:
        opening.close()
        raise


def check_unused(files: Files, paths: Sequence[str]) -> None:
    """Raise StartupError if another process uses one of the directories."""
    for path in paths:
        directory = LogDirectory(files, path)
        with suppress(StorageFault):  # the caller that opens the directory reports the fault
            directory.open()
        directory.close()


class _Opening:
    def __init__(self, files: Files, node_id: int, cluster_id: str | None) -> None:
        self._files, self._node_id, self._cluster_id = files, node_id, cluster_id
        self._directories: list[LogDirectory] = []
        self._bad: dict[str, StorageFault] = {}

    def close(self) -> None:
        for directory in self._directories:
            directory.close()

    def run(self, paths: Sequence[str]) -> OpenedDirectories:
        for path in paths:
            self._open(LogDirectory(self._files, path))
        self._check_owners()
        identities = [each.identity for each in self._directories if each.identity is not None]
        known = {each for identity in identities for each in (identity.directory_id, *identity.known_ids)} - {""}
        missing = known - {identity.directory_id for identity in identities}
        if len(missing) > len(self._bad):
            self._refuse_empty(missing)
        self._identify()
        if self._bad and not identities:
            raise self._refusal()  # a new broker needs all of them
        self._write_known_ids(known)
        if not self._directories:
            raise self._refusal()
        for fault in self._bad.values():
            logger.error("%s; the broker continues without it", fault)
        if missing:
            ids = ", ".join(sorted(missing))
            logger.error("data directories of earlier starts are missing; their ids: %s", ids)
        return OpenedDirectories(self._directories, self._bad, frozenset(missing), is_new=not identities)

    def _open(self, directory: LogDirectory) -> None:
        try:
            directory.open()
            self._directories.append(directory)
        except StorageFault as fault:
            self._bad[directory.path] = fault

    def _check_owners(self) -> None:
        cluster_id, path = self._cluster_id, None
        for directory in self._directories:
            identity = directory.identity
            if identity is None:
                continue
            if identity.node_id != self._node_id:
                raise StartupError(
                    f"the data directory {directory.path} belongs to node {identity.node_id}, "
                    f"this broker's node.id is {self._node_id}"
                )
            if cluster_id is not None and identity.cluster_id != cluster_id:
                ours = f"{path} to {cluster_id}" if path is not None else f"this broker's is {cluster_id}"
                raise StartupError(
                    f"the data directory {directory.path} belongs to cluster {identity.cluster_id}, {ours}"
                )
            cluster_id, path = identity.cluster_id, directory.path
        self._cluster_id = cluster_id

    def _refuse_empty(self, missing: set[str]) -> None:
        for directory in [each for each in self._directories if each.identity is None]:
            self._directories.remove(directory)
            self._bad[directory.path] = StorageFault(
                f"the data directory {directory.path} is empty, and the one with id {', '.join(sorted(missing))} is "
                "missing: mount its disk, or, if it is gone for good, see `flowstone log forget --help`"
            )

    def _identify(self) -> None:
        """Assign an id to each directory that has none yet."""
        new = Identity(self._cluster_id or new_directory_id(), self._node_id, "")
        for directory in self._directories.copy():
            identity = directory.identity or new
            if not identity.directory_id:
                self._format(directory, identity._replace(directory_id=new_directory_id()))

    def _write_known_ids(self, known: set[str]) -> None:
        """Write the ids of all directories into each of them."""
        ids = sorted(known.union(each.identity.directory_id for each in self._directories if each.identity is not None))
        for directory in self._directories.copy():
            assert directory.identity is not None
            wanted = directory.identity._replace(known_ids=tuple(ids) if len(ids) > 1 else ())
            if directory.identity != wanted:
                self._format(directory, wanted)

    def _format(self, directory: LogDirectory, identity: Identity) -> None:
        try:
            directory.format(identity)
        except StorageFault as fault:
            self._directories.remove(directory)
            self._bad[directory.path] = fault

    def _refusal(self) -> StartupError:
        faults = list(self._bad.values())
        refusal = StartupError("; ".join(map(str, faults)))
        refusal.__cause__ = faults[0].__cause__  # the operating system's error, for messages that give advice
        return refusal
