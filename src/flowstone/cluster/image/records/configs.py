"""Records about settings of groups, subscriptions to clients' metrics, and dynamic broker settings.

Topic settings are changed by records of the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
        broker_configs = draft.copied("broker_configs")
        configs = changed_values(broker_configs.pop(self.broker, {}), self.changes)
        if configs:
            broker_configs[self.broker] = configs

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[BrokerConfigChanged]:
        for broker in {**before.broker_configs, **after.broker_configs}:
            changes = value_changes(before.broker_configs.get(broker, {}), after.broker_configs.get(broker, {}))
            if changes:
                yield cls(broker, changes)


@metadata_record(levels=(2,))
class GroupConfigChanged(MetadataRecord):
    """Values to set for a group; None removes one. A group with values need not exist."""

    group_id: str
    changes: Mapping[str, str | None] = stored(VALUES)

    def apply(self, draft: Draft) -> None:
        group_configs = draft.copied("group_configs")
        configs = changed_values(group_configs.pop(self.group_id, {}), self.changes)
        if configs:
            group_configs[self.group_id] = configs

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[GroupConfigChanged]:
        for group_id in {**before.group_configs, **after.group_configs}:
            changes = value_changes(before.group_configs.get(group_id, {}), after.group_configs.get(group_id, {}))
            if changes:
                yield cls(group_id, changes)


@metadata_record(levels=(2,))
class ClientMetricsChanged(MetadataRecord):
    """Values to set for a subscription to clients' metrics; None removes one, and the last one the subscription."""

    name: str
    changes: Mapping[str, str | None] = stored(VALUES)

    def apply(self, draft: Draft) -> None:
        client_metrics = draft.copied("client_metrics")
        values = changed_values(client_metrics.pop(self.name, {}), self.changes)
        if values:
            client_metrics[self.name] = values

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ClientMetricsChanged]:
        for name in {**before.client_metrics, **after.client_metrics}:
            changes = value_changes(before.client_metrics.get(name, {}), after.client_metrics.get(name, {}))
            if changes:
                yield cls(name, changes)
