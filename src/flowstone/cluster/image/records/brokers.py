"""Records about brokers: a broker registers, is fenced, or is unregistered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, Endpoint
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.features import FeatureRange
from flowstone.cluster.image.records.declaration import Json, MetadataRecord, metadata_record
from flowstone.errors import StorageFault


@metadata_record()
class BrokerRegistered(MetadataRecord):
    """A broker joined, or came back with other addresses: the newest registration applies."""

    broker: BrokerImage

    def to_json(self, version: int) -> Json:
        """Return the broker's fields. Its features are left out if there are none; former releases ignore them."""
        broker = self.broker
        features = {name: [each.min_level, each.max_level] for name, each in broker.features.items()}
        return {
            "node_id": broker.node_id,
            "rack": broker.rack,
            "listeners": {name: [each.host, each.port] for name, each in broker.listeners.items()},
            "incarnation": broker.incarnation,
            "epoch": broker.epoch,
            "fenced": broker.is_fenced,
            **({"features": features} if features else {}),
        }

    @classmethod
    def from_json(cls, value: Json, version: int) -> Self:
        return cls(
            BrokerImage(
                node_id=value["node_id"],
                rack=value["rack"],
                listeners={name: Endpoint(host, port) for name, (host, port) in value["listeners"].items()},
                incarnation=value.get("incarnation", ""),
                epoch=value.get("epoch", 0),
                is_fenced=value.get("fenced", False),
                features={name: FeatureRange(*levels) for name, levels in value.get("features", {}).items()},
            )
        )

    def apply(self, draft: Draft) -> None:
        _put(draft, self.broker)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[BrokerRegistered]:
        for node_id, broker in after.brokers.items():
            if before.brokers.get(node_id) != broker:
                yield cls(broker)


@metadata_record()
class BrokerFenced(MetadataRecord):
    """A life of a broker has ended, as far as the cluster knows."""

    node_id: int
    epoch: int

    def apply(self, draft: Draft) -> None:
        _put(draft, replace(_living(draft, self.node_id, self.epoch), is_fenced=True))


@metadata_record()
class BrokerUnregistered(MetadataRecord):
    """A broker was removed from the cluster; a later one with the same id is a new broker."""

    node_id: int
    epoch: int

    def apply(self, draft: Draft) -> None:
        _living(draft, self.node_id, self.epoch)
        brokers = {node_id: each for node_id, each in draft.image.brokers.items() if node_id != self.node_id}
        draft.image = replace(draft.image, brokers=brokers)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[BrokerUnregistered]:
        for node_id, broker in before.brokers.items():
            if node_id not in after.brokers:
                yield cls(node_id, broker.epoch)


def _living(draft: Draft, node_id: int, epoch: int) -> BrokerImage:
    broker = draft.image.brokers.get(node_id)
    if broker is None or broker.epoch != epoch:
        raise StorageFault(f"the metadata log ends the life of the unknown broker {node_id} of epoch {epoch}")
    return broker


def _put(draft: Draft, broker: BrokerImage) -> None:
    draft.image = replace(draft.image, brokers={**draft.image.brokers, broker.node_id: broker})
