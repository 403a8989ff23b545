"""Records about dynamic broker settings. Topic settings are changed by records of the topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.config_values import VALUES, changed_values, value_changes
from flowstone.cluster.image.records.declaration import MetadataRecord, metadata_record, stored


@metadata_record()
class BrokerConfigChanged(MetadataRecord):
    """Values to set for a broker (its node id as text) or for all of them (""); None removes one."""

    broker: str
    changes: Mapping[str, str | None] = stored(VALUES)

    def apply(self, draft: Draft) -> None:
        broker_configs = dict(draft.image.broker_configs)
        configs = changed_values(broker_configs.pop(self.broker, {}), self.changes)
        if configs:
            broker_configs[self.broker] = configs
        draft.image = replace(draft.image, broker_configs=broker_configs)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[BrokerConfigChanged]:
        for broker in {**before.broker_configs, **after.broker_configs}:
            changes = value_changes(before.broker_configs.get(broker, {}), after.broker_configs.get(broker, {}))
            if changes:
                yield cls(broker, changes)
