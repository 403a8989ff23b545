"""Which value of a setting counts, and where it comes from.

A topic's setting is looked up in: the topic's own values, the broker's dynamic values, the dynamic values of all
brokers, the values the broker was started with, the default. A broker's own setting likewise, without the first step.
Pure: the table of settings is `flowstone.config`'s, the dynamic values are the image's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from flowstone.cluster.image import CLUSTER_DEFAULT, ClusterImage, TopicImage
from flowstone.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Setting,
    TopicConfig,
    broker_value,
    current_values,
    parse_broker_config,
    parse_topic_config,
)


class ConfigSource(IntEnum):
    """DescribeConfigs' numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting, and the places that give it a value, the one that counts first."""

    setting: Setting
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


@cache
def _broker_wide(setting: Setting) -> Setting:
    """A topic setting under the name by which a broker gives its default; Kafka takes changes under this name only."""
    name = setting.broker_names[0][0] if setting.broker_names else setting.name
    return dataclasses.replace(setting, name=name)


# What can be changed while a broker runs: some of its own settings, and every topic setting's broker-wide value.
BROKER_WIDE_TOPIC_SETTINGS: Mapping[str, Setting] = {
    broker_wide.name: broker_wide for broker_wide in map(_broker_wide, TOPIC_SETTINGS.values())
}
DYNAMIC_BROKER_SETTINGS: Mapping[str, Setting] = {
    **{name: setting for name, setting in BROKER_SETTINGS.items() if not setting.read_only},
    **BROKER_WIDE_TOPIC_SETTINGS,
}


def broker_config(image: ClusterImage, started_with: BrokerConfig) -> BrokerConfig:
    """The broker's own settings with the dynamic ones applied."""
    dynamic = {
        name: value
        for values in reversed(_dynamic_values(image, started_with.node_id))
        for name, value in values.items()
        if name in BROKER_SETTINGS
    }
    if not dynamic:
        return started_with
    return parse_broker_config({**current_values(started_with), **dynamic})[0]


def topic_defaults(image: ClusterImage, started_with: Mapping[str, str], node_id: int) -> Mapping[str, str]:
    """The broker's values of topic settings, by the topic settings' names."""
    if not image.broker_configs:
        return started_with
    defaults = dict(started_with)
    for values in reversed(_dynamic_values(image, node_id)):
        for setting in TOPIC_SETTINGS.values():
            value = broker_value(setting, values)
            if value is not None:
                defaults[setting.name] = value
    return defaults


def topic_config(image: ClusterImage, topic: str, started_with: Mapping[str, str], node_id: int) -> TopicConfig:
    """The settings that count on one broker for a topic of the image."""
    return parse_topic_config(topic_defaults(image, started_with, node_id), image.topics[topic].configs)


def describe_topic(
    image: ClusterImage,
    topic: TopicImage,
    started_with: Mapping[str, str],
    node_id: int,
    names: Collection[str] | None = None,
) -> list[ConfigEntry]:
    """The topic's settings, all of them or those named; a name that is no setting is passed over, as in Kafka."""
    entries = []
    for setting in TOPIC_SETTINGS.values():
        if names is not None and setting.name not in names:
            continue
        synonyms = list(_topic_default_synonyms(image, node_id, setting, started_with))
        if setting.name in topic.configs:
            own = ConfigSynonym(setting.name, topic.configs[setting.name], ConfigSource.DYNAMIC_TOPIC_CONFIG)
            synonyms.insert(0, own)
        entries.append(ConfigEntry(setting, tuple(synonyms)))
    return entries


def describe_broker(
    image: ClusterImage,
    started_with: BrokerConfig,
    topic_values: Mapping[str, str],
    names: Collection[str] | None = None,
) -> list[ConfigEntry]:
    """One broker's settings, and its values of topic settings under their broker-wide names."""
    node_id = started_with.node_id
    values = current_values(started_with)
    entries = []
    for setting in BROKER_SETTINGS.values():
        static = (values[setting.name], setting.format(setting.default))
        entries.append(ConfigEntry(setting, _broker_synonyms(image, node_id, setting, *static)))
    for topic_setting in TOPIC_SETTINGS.values():
        synonyms = _topic_default_synonyms(image, node_id, topic_setting, topic_values)
        entries.append(ConfigEntry(_broker_wide(topic_setting), synonyms))
    return [entry for entry in entries if names is None or entry.setting.name in names]


def describe_cluster_default(image: ClusterImage, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The dynamic values that all brokers share: only those that are set, as in Kafka."""
    values = image.broker_configs.get(CLUSTER_DEFAULT, {})
    return [
        ConfigEntry(
            DYNAMIC_BROKER_SETTINGS[name],
            (ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),),
        )
        for name, value in values.items()
        if name in DYNAMIC_BROKER_SETTINGS and (names is None or name in names)
    ]


def _dynamic_values(image: ClusterImage, node_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return image.broker_configs.get(str(node_id), {}), image.broker_configs.get(CLUSTER_DEFAULT, {})


def _topic_default_synonyms(
    image: ClusterImage, node_id: int, setting: Setting, started_with: Mapping[str, str]
) -> tuple[ConfigSynonym, ...]:
    default = setting.format(setting.default)
    return _broker_synonyms(image, node_id, _broker_wide(setting), started_with.get(setting.name, default), default)


def _broker_synonyms(
    image: ClusterImage, node_id: int, setting: Setting, static: str, default: str
) -> tuple[ConfigSynonym, ...]:
    own, shared = _dynamic_values(image, node_id)
    found = []
    if setting.name in own:
        found.append(ConfigSynonym(setting.name, own[setting.name], ConfigSource.DYNAMIC_BROKER_CONFIG))
    if setting.name in shared:
        found.append(ConfigSynonym(setting.name, shared[setting.name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
    # A value given at start that equals the default is not told apart from the default.
    if static != default:
        found.append(ConfigSynonym(setting.name, static, ConfigSource.STATIC_BROKER_CONFIG))
    found.append(ConfigSynonym(setting.name, default, ConfigSource.DEFAULT_CONFIG))
    return tuple(found)
