"""Determines the effective value of a setting, and where it comes from.

A topic's setting is looked up in: the topic's own values, the broker's dynamic values, the dynamic values of all
brokers, the values the broker was started with, the default. A broker's own setting likewise, without the first step.
Pure: the table of settings is in `flowstone.config`, the dynamic values are in the image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from flowstone.cluster.image.cluster_image import CLUSTER_DEFAULT, ClusterImage, TopicImage
from flowstone.config import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    GroupSettings,
    Kind,
    Setting,
    TopicConfig,
    TopicDefaults,
    broker_value,
    current_values,
    effective_group_settings,
    parse_broker_config,
    parse_topic_config,
    stored_setting,
)
from flowstone.config.client_metrics import CLIENT_METRICS_SETTINGS


class ConfigSource(IntEnum):
    """The sources of values, with DescribeConfigs' numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting, its value (None if nothing sets it), and the sources that set it, the effective one first.

    A synonym may state the value under another name and in another unit: `log.retention.hours` for `retention.ms`.
    """

    setting: Setting
    value: str | None
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT_CONFIG


def _broker_wide_names(setting: Setting) -> tuple[Setting, ...]:
    """Return a topic setting's broker-wide names, the one with the highest precedence first.

    Only the last one has a default, in its own unit, as in Kafka: `log.retention.hours` is 168 if nothing was set, and
    `log.retention.ms` has no value. A name in another unit than the topic setting's cannot be changed at run time.
    """
    return tuple(
        dataclasses.replace(
            setting,
            name=name,
            kind=setting.kind if factor == 1 else Kind.INT,
            read_only=factor != 1,
        )
        for name, factor in setting.broker_wide_names
    )


def _named_default(setting: Setting) -> ConfigSynonym:
    """Return the default of a topic setting under the broker-wide name that has one."""
    name, factor = setting.broker_wide_names[-1]
    default = setting.default
    if factor != 1:
        assert isinstance(default, int)
        default //= factor
    return ConfigSynonym(name, setting.format(default), ConfigSource.DEFAULT_CONFIG)


_BROKER_WIDE_NAMES = {setting.name: _broker_wide_names(setting) for setting in TOPIC_SETTINGS.values()}
_NAMED_DEFAULTS = {setting.name: _named_default(setting) for setting in TOPIC_SETTINGS.values()}

# The settings that can be changed while a broker runs: some of its own, and the broker-wide values of topic settings
# under the name that counts first; Kafka takes changes under this name only.
BROKER_WIDE_TOPIC_SETTINGS: Mapping[str, Setting] = {names[0].name: names[0] for names in _BROKER_WIDE_NAMES.values()}
DYNAMIC_BROKER_SETTINGS: Mapping[str, Setting] = {
    **{name: setting for name, setting in BROKER_SETTINGS.items() if not setting.read_only},
    **BROKER_WIDE_TOPIC_SETTINGS,
}


def broker_config(image: ClusterImage, started_with: BrokerConfig) -> BrokerConfig:
    """Return the broker's own settings with the dynamic ones applied."""
    dynamic = {
        name: value
        for values in reversed(_dynamic_values(image, started_with.node_id))
        for name, value in values.items()
        if name in BROKER_SETTINGS and BROKER_SETTINGS[name].has_effect
    }
    if not dynamic:
        return started_with
    return parse_broker_config({**current_values(started_with), **dynamic})[0]


def thread_count(image: ClusterImage, started_with: BrokerConfig, name: str) -> int:
    """Return the value of a broker's setting of this name, which is a number of threads."""
    found = _dynamic_synonyms(image, started_with.node_id, name)
    return int(found[0].value if found else current_values(started_with)[name])


def idle_settings(image: ClusterImage, started_with: BrokerConfig) -> set[str]:
    """Return the names of the settings without effect that the broker was given, at its start or since."""
    dynamic = {name for values in _dynamic_values(image, started_with.node_id) for name in values}
    return {*started_with.stored, *(name for name in dynamic if stored_setting(name) is not None)}


def topic_defaults(image: ClusterImage, started_with: Mapping[str, str], node_id: int) -> Mapping[str, str]:
    """Return the broker's values of topic settings, by the topic settings' names."""
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
    """Return the settings that apply on one broker to a topic of the image."""
    return parse_topic_config(topic_defaults(image, started_with, node_id), image.topics[topic].configs)


def describe_topic(
    image: ClusterImage,
    topic: TopicImage,
    started_with: TopicDefaults,
    node_id: int,
    names: Collection[str] | None = None,
) -> list[ConfigEntry]:
    """Return the topic's settings, all or the named ones; a name that is no setting is skipped, as in Kafka."""
    entries = []
    defaults = topic_defaults(image, started_with, node_id)
    for setting in TOPIC_SETTINGS.values():
        if setting.is_hidden or (names is not None and setting.name not in names):
            continue
        synonyms = _topic_default_synonyms(image, node_id, setting, started_with)
        if len(setting.broker_wide_names) > 1:
            synonyms = synonyms[:-1]  # a default under another name, such as log.retention.hours: Kafka omits it
        value = topic.configs.get(setting.name)
        if value is not None:
            synonyms = (ConfigSynonym(setting.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG), *synonyms)
        else:
            value = defaults.get(setting.name, setting.format(setting.default))
        entries.append(ConfigEntry(setting, value, synonyms))
    return entries


def describe_broker(
    image: ClusterImage,
    started_with: BrokerConfig,
    topic_values: TopicDefaults,
    names: Collection[str] | None = None,
) -> list[ConfigEntry]:
    """Return one broker's settings, and its values of topic settings under their broker-wide names."""
    node_id = started_with.node_id
    values = current_values(started_with)
    entries = []
    for setting in BROKER_SETTINGS.values():
        if setting.has_effect:
            static = (values[setting.name], setting.format(setting.default))
            synonyms = _broker_synonyms(image, node_id, setting, *static)
            entries.append(ConfigEntry(setting, synonyms[0].value, synonyms))
        elif not setting.is_hidden:
            entries.append(_stored_entry(image, started_with, setting))
    for topic_setting in filter(lambda each: not each.is_hidden, TOPIC_SETTINGS.values()):
        found = _topic_default_synonyms(image, node_id, topic_setting, topic_values)
        for broker_wide in _BROKER_WIDE_NAMES[topic_setting.name]:
            own = tuple(synonym for synonym in found if synonym.name == broker_wide.name)
            entries.append(ConfigEntry(broker_wide, own[0].value if own else None, own))
    return [entry for entry in entries if names is None or entry.setting.name in names]


def _stored_entry(image: ClusterImage, started_with: BrokerConfig, setting: Setting) -> ConfigEntry:
    """Return the entry of a broker setting without effect."""
    found = _dynamic_synonyms(image, started_with.node_id, setting.name)
    if setting.name in started_with.stored:
        static = started_with.stored[setting.name]
        found.append(ConfigSynonym(setting.name, static, ConfigSource.STATIC_BROKER_CONFIG))
    if setting.default is not None:
        default = setting.format(setting.default)
        found.append(ConfigSynonym(setting.name, default, ConfigSource.DEFAULT_CONFIG))
    return ConfigEntry(setting, found[0].value if found else None, tuple(found))


def group_settings(image: ClusterImage, group_id: str, started_with: BrokerConfig) -> GroupSettings:
    """Return the settings that apply to a group, whatever its type, on a broker that was started with these values."""
    values = image.group_configs.get(group_id, {})
    return effective_group_settings(broker_config(image, started_with), values)


def describe_group(
    image: ClusterImage, group_id: str, started_with: BrokerConfig, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """Return the group's settings, all or the named ones, with the broker's settings that are their defaults."""
    own = image.group_configs.get(group_id, {})
    broker_values = current_values(started_with)
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        if names is not None and name not in names:
            continue
        synonyms: tuple[ConfigSynonym, ...] = ()
        for broker_name, _ in setting.broker_names:
            broker_wide = BROKER_SETTINGS[broker_name]
            static = (broker_values[broker_name], broker_wide.format(broker_wide.default))
            synonyms = _broker_synonyms(image, started_with.node_id, broker_wide, *static)
        if name in own:
            synonyms = (ConfigSynonym(name, own[name], ConfigSource.DYNAMIC_GROUP_CONFIG), *synonyms)
        value = synonyms[0].value if synonyms else setting.format(setting.default)
        entries.append(ConfigEntry(setting, value, synonyms))
    return entries


def describe_client_metrics(image: ClusterImage, name: str, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the settings of a subscription to clients' metrics, all or the named ones; none if it does not exist."""
    values = image.client_metrics.get(name)
    if values is None:
        return []
    entries = []
    for setting in CLIENT_METRICS_SETTINGS.values():
        if names is not None and setting.name not in names:
            continue
        default = ConfigSynonym(setting.name, setting.format(setting.default), ConfigSource.DEFAULT_CONFIG)
        synonyms: tuple[ConfigSynonym, ...] = (default,)
        if setting.name in values:
            own = ConfigSynonym(setting.name, values[setting.name], ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)
            synonyms = (own, default)
        entries.append(ConfigEntry(setting, synonyms[0].value, synonyms))
    return entries


def describe_cluster_default(image: ClusterImage, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """Return the dynamic values that all brokers share: only those that are set, as in Kafka."""
    values = image.broker_configs.get(CLUSTER_DEFAULT, {})
    return [
        ConfigEntry(
            DYNAMIC_BROKER_SETTINGS[name],
            value,
            (ConfigSynonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),),
        )
        for name, value in values.items()
        if name in DYNAMIC_BROKER_SETTINGS and (names is None or name in names)
    ]


def _dynamic_values(image: ClusterImage, node_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return image.broker_configs.get(str(node_id), {}), image.broker_configs.get(CLUSTER_DEFAULT, {})


def _topic_default_synonyms(
    image: ClusterImage, node_id: int, setting: Setting, started_with: TopicDefaults
) -> tuple[ConfigSynonym, ...]:
    """Return the broker's values of a topic setting, each under the name that set it."""
    given = started_with.given
    return (
        *_dynamic_synonyms(image, node_id, setting.broker_wide_names[0][0]),
        *(
            ConfigSynonym(name, given[name], ConfigSource.STATIC_BROKER_CONFIG)
            for name, _ in setting.broker_wide_names
            if name in given
        ),
        _NAMED_DEFAULTS[setting.name],
    )


def _dynamic_synonyms(image: ClusterImage, node_id: int, name: str) -> list[ConfigSynonym]:
    if not image.broker_configs:
        return []
    own, shared = _dynamic_values(image, node_id)
    found = []
    if name in own:
        found.append(ConfigSynonym(name, own[name], ConfigSource.DYNAMIC_BROKER_CONFIG))
    if name in shared:
        found.append(ConfigSynonym(name, shared[name], ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG))
    return found


def _broker_synonyms(
    image: ClusterImage, node_id: int, setting: Setting, static: str, default: str
) -> tuple[ConfigSynonym, ...]:
    found = _dynamic_synonyms(image, node_id, setting.name)
    # A value given at start that equals the default cannot be distinguished from the default.
    if static != default:
        found.append(ConfigSynonym(setting.name, static, ConfigSource.STATIC_BROKER_CONFIG))
    found.append(ConfigSynonym(setting.name, default, ConfigSource.DEFAULT_CONFIG))
    return tuple(found)
