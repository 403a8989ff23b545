"""Records about producer ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import MetadataRecord, metadata_record
from flowstone.errors import StorageFault


@metadata_record()
class ProducerIdsReserved(MetadataRecord):
    """Every producer id below `next_producer_id` is reserved by some broker."""

    next_producer_id: int

    def apply(self, draft: Draft) -> None:
        if self.next_producer_id < draft.image.next_producer_id:
            raise StorageFault(f"the metadata log takes back producer ids from {self.next_producer_id} on")
        draft.image = replace(draft.image, next_producer_id=self.next_producer_id)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ProducerIdsReserved]:
        if after.next_producer_id > before.next_producer_id:
            yield cls(after.next_producer_id)
