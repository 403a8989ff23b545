"""Records about the cluster as a whole: its creation and its controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import MetadataRecord, metadata_record
from flowstone.errors import StorageFault


@metadata_record()
class ClusterCreated(MetadataRecord):
    cluster_id: str

    def apply(self, draft: Draft) -> None:
        if draft.image.cluster_id:
            raise StorageFault(
                f"the metadata log makes cluster {self.cluster_id} within cluster {draft.image.cluster_id}"
            )
        draft.image = replace(draft.image, cluster_id=self.cluster_id)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ClusterCreated]:
        if after.cluster_id and not before.cluster_id:
            yield cls(after.cluster_id)


@metadata_record()
class ControllerElected(MetadataRecord):
    node_id: int
    epoch: int

    def apply(self, draft: Draft) -> None:
        if self.epoch <= draft.image.controller_epoch:
            raise StorageFault(f"the metadata log elects a controller with the used epoch {self.epoch}")
        draft.image = replace(draft.image, controller_id=self.node_id, controller_epoch=self.epoch)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ControllerElected]:
        if after.controller_epoch > before.controller_epoch:
            yield cls(after.controller_id, after.controller_epoch)
