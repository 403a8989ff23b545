"""Records about finalized feature levels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import MetadataRecord, metadata_record


@metadata_record()
class FeatureLevelChanged(MetadataRecord):
    """The level of a feature that all brokers use from now on; level 0 means that the feature is off.

    Releases that do not know this type support no level but the ones that need no record, so that none of them is a
    member of a cluster when the first record of this type is written.
    """

    name: str
    feature_level: int

    def apply(self, draft: Draft) -> None:
        draft.image = replace(draft.image, features={**draft.image.features, self.name: self.feature_level})

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[FeatureLevelChanged]:
        for name, level in after.features.items():
            if before.features.get(name) != level:
                yield cls(name, level)
