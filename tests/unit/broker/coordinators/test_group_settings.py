"""The settings of groups as coordinators and share partitions read them."""

from __future__ import annotations

from typing import Any

from flowstone.broker.coordinators.group_settings import GroupSettingsSource
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE
from flowstone.cluster.image.records import BrokerConfigChanged, GroupConfigChanged
from flowstone.cluster.image.replay import apply
from flowstone.config import BrokerConfig, GroupSettings


class _Metadata:
    def __init__(self) -> None:
        self.image = EMPTY_IMAGE

    def change(self, *records: Any) -> None:
        self.image = apply(self.image, records)


def test_parsed_settings_are_kept_until_a_setting_changes() -> None:
    metadata: Any = _Metadata()
    source = GroupSettingsSource(metadata, BrokerConfig())
    first = source.of("g")
    assert source.of("g") is first is source.of("h")
    metadata.change(GroupConfigChanged("g", {"consumer.session.timeout.ms": "50000"}))
    changed = source.of("g")
    assert changed.consumer_session_timeout_ms == 50_000
    assert source.of("g") is changed
    assert source.of("h") == GroupSettings()
    metadata.change(BrokerConfigChanged("", {"num.partitions": "3"}))
    assert source.of("g") == changed
    assert source.of("g") is not changed
