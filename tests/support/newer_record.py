"""A metadata record of a release that does not exist yet."""

from __future__ import annotations

from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records import MetadataRecord


class NewerRecord(MetadataRecord):
    """Can be written, and is not declared: no reader knows it."""

    LEVELS, WRITERS = (1,), ((),)

    def apply(self, draft: Draft) -> None:
        """Changes nothing."""
