"""Replays records into an image, and computes records from images.

`apply` is pure and deterministic: every broker that has applied the same records holds an equal image. A record that
does not fit the image (a topic made twice, a change to an unknown one) means a damaged log and raises `StorageFault`.

What a record does to the image, and how it follows from two images, is declared with the record (`records`).
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.records.declaration import RECORD_TYPES


def apply(image: ClusterImage, records: Iterable[MetadataRecord]) -> ClusterImage:
    """Return the image that the records make of this one. Its version grows by one with each record."""
    draft, version = Draft(image), image.version
    for record in records:
        record.apply(draft)
        version += 1
    return draft.finish(version)


def difference(before: ClusterImage, after: ClusterImage) -> list[MetadataRecord]:
    """Return records that lead from one image to a later one, for brokers that missed those that did.

    What they add up to equals the later image but for its version: it had other changes, and perhaps more.
    """
    return [record for declared in RECORD_TYPES.values() for record in declared.difference(before, after)]


def snapshot(image: ClusterImage) -> list[MetadataRecord]:
    """Return records that make the image of nothing.

    They are at most as many as the image has applied, so that a compacted log can end at the offset at which the long
    one ended.
    """
    records = difference(type(image)(), image)
    assert len(records) <= image.version + 1
    return records
