"""A broker's own copy of the metadata log that its cluster stores in ZooKeeper: the file of `metadata_copies`.

With it a start reads only what is new. It also detects loss: a broker that finds ZooKeeper empty, or behind its copy,
knows that ZooKeeper has lost what the cluster agreed on, and an operator can restore it from here.

The copy is always a prefix of the log, because it is written after the commit. No request waits for it; a disk that
fails, or is full, costs the copy and nothing else. A mark file beside it says that the log itself is elsewhere, so that
a start does not take the copy for the log of a single broker. Waits for the disk: for a thread, and for the start.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, NO_VERSION, ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.file_log import COMPACTION_GROWTH, COMPACTION_MIN_BYTES
from flowstone.cluster.logs.log_batches import encode_batch, encode_snapshot
from flowstone.cluster.logs.metadata_copies import DIRECTORY, MARK_NAME, MetadataCopies, OutOfSpaceError, is_only_a_copy
from flowstone.errors import StartupError, StorageFault
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files

_MARK = b"The metadata of this directory's cluster is in ZooKeeper; here is a copy of it.\n"

logger = logging.getLogger(__name__)


class LocalCopy:
    def __init__(
        self, files: Files, log_directories: Sequence[str], clock: Clock, *, is_incomplete: bool = False
    ) -> None:
        self._files, self._clock = files, clock
        self._log_directories = log_directories
        self._mark_paths = [posixpath.join(each, DIRECTORY, MARK_NAME) for each in log_directories]
        self._copies = MetadataCopies(files, log_directories, is_incomplete=is_incomplete)
        self._version = NO_VERSION
        self._snapshot_bytes = 0
        self._is_failed = False

    @property
    def path(self) -> str:
        return self._copies.path

    @property
    def is_marked(self) -> bool:
        return any(is_only_a_copy(self._files, each) for each in self._log_directories)

    def load(self) -> ClusterImage:
        """Return the image that the copy's records produce, empty without a copy. Raises StartupError if the copy is
        damaged.
        """
        try:
            first_offset, records = self._copies.load()
        except StartupError:
            self._is_failed = not self._files.exists(self.path)
            raise
        try:
            image = apply(ClusterImage(version=first_offset - 1), records) if records else EMPTY_IMAGE
        except StorageFault as fault:
            raise StartupError(f"the copy of the metadata log {self.path} cannot be read: {fault}") from fault
        self._version = image.version
        return image

    def mark(self) -> None:
        """Write the mark that this is only a copy. Raises OSError if the disk fails."""
        for path in self._mark_paths:
            if not self._files.exists(path):
                self._files.replace(path, _MARK)

    def save(self, records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        """Append the records that lead to `image`, or write the whole image if records are missing in between."""
        if self._is_failed or image.version == self._version:
            return
        try:
            if self._version + len(records) == image.version and not self._is_overgrown():
                self._copies.write(encode_batch(records, self._version + 1, self._clock.time_ms()))
            else:
                self._copies.replace(encode_snapshot(image, self._clock.time_ms()))
                self._snapshot_bytes = self._copies.size_bytes
        except OutOfSpaceError as full:  # the next save misses records in between, and so writes the whole image
            logger.warning("%s: no disk space for the copy of the metadata log: %s", self.path, full)
        except OSError as error:
            self._is_failed = True
            logger.error("%s: the copy of the metadata log failed and is no longer kept: %s", self.path, error)
        else:
            self._version = image.version

    def close(self) -> None:
        self._copies.close()

    def _is_overgrown(self) -> bool:
        return self._copies.size_bytes > max(COMPACTION_MIN_BYTES, COMPACTION_GROWTH * self._snapshot_bytes)
