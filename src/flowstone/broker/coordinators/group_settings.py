"""The effective settings of groups, from the newest metadata, for coordinators and share partitions.

Heartbeats and fetches ask for them all the time, so parsed settings are kept until the settings in the metadata change.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.cluster.decisions.configs import group_settings
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig, GroupSettings


class GroupSettingsSource:
    def __init__(self, metadata: Metadata, config: BrokerConfig) -> None:
        self._metadata, self._config = metadata, config
        # What the kept settings were parsed from; changes replace these mappings.
        self._group_configs: Mapping[str, Mapping[str, str]] | None = None
        self._broker_configs: Mapping[str, Mapping[str, str]] | None = None
        self._defaults: GroupSettings | None = None
        self._parsed: dict[str, GroupSettings] = {}

    def of(self, group_id: str) -> GroupSettings:
        """Return the settings that apply to the group now, whether or not it exists."""
        image = self._metadata.image
        if image.group_configs is not self._group_configs or image.broker_configs is not self._broker_configs:
            self._group_configs, self._broker_configs = image.group_configs, image.broker_configs
            self._defaults, self._parsed = None, {}
        if group_id in image.group_configs:
            found = self._parsed.get(group_id)
            if found is None:
                found = self._parsed[group_id] = group_settings(image, group_id, self._config)
            return found
        if self._defaults is None:
            self._defaults = group_settings(image, group_id, self._config)
        return self._defaults
