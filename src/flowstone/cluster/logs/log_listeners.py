"""Calls the listeners of a metadata log, whatever its implementation.

A listener that fails changes nothing: what it was told of is committed, and the other listeners must hear of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.errors import StorageFault

logger = logging.getLogger(__name__)

# Called on the event loop for each append, in the log's order, once it is committed: with its records and the new
# image.
CommitListener = Callable[[Sequence[MetadataRecord], ClusterImage], None]
# Called when appends were refused and left nothing: what is not committed yet will not be.
RefusalListener = Callable[[], None]
# Called when the log cannot be followed any further.
FailureListener = Callable[[StorageFault], None]


class LogListeners:
    def __init__(self) -> None:
        self._commit_listeners: list[CommitListener] = []
        self._refusal_listeners: list[RefusalListener] = []
        self._failure_listeners: list[FailureListener] = []

    def on_commit(self, listener: CommitListener) -> None:
        """Call `listener` for every append from now on, this broker's own (with the same objects) and others'."""
        self._commit_listeners.append(listener)

    def on_refusal(self, listener: RefusalListener) -> None:
        self._refusal_listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        self._failure_listeners.append(listener)

    # Called by the log

    def committed(self, records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        for listener in self._commit_listeners:
            try:
                listener(records, image)
            except Exception:
                logger.exception("a listener failed at record %d of the metadata log", image.version)

    def refused(self) -> None:
        for listener in self._refusal_listeners:
            listener()

    def failed(self, fault: StorageFault) -> None:
        for listener in self._failure_listeners:
            listener(fault)
