"""Records about the quotas of clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.quota import QuotaEntity
from flowstone.cluster.image.records.declaration import Form, MetadataRecord, metadata_record, stored


def _read(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    return tuple((kind, name) for kind, name in pairs)


ENTITY = Form(lambda entity: [list(pair) for pair in entity], _read)


@metadata_record(levels=(2,))
class ClientQuotaChanged(MetadataRecord):
    """New values of an entity's quotas, by key; None removes one."""

    entity: QuotaEntity = stored(ENTITY)
    changes: Mapping[str, float | None]

    def apply(self, draft: Draft) -> None:
        quotas = draft.copied("quotas")
        values = {**quotas.get(self.entity, {}), **self.changes}
        left = {key: value for key, value in values.items() if value is not None}
        if left:
            quotas[self.entity] = left
        else:
            quotas.pop(self.entity, None)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ClientQuotaChanged]:
        if after.quotas is before.quotas:
            return
        for entity in before.quotas.keys() | after.quotas.keys():
            old, new = before.quotas.get(entity, {}), after.quotas.get(entity, {})
            changes = {key: new.get(key) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
            if changes:
                yield cls(entity, changes)
