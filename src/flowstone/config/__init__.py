"""Definition of every setting: Kafka's name, type, default, bounds and a description.

The fields of `TopicConfig`, `GroupSettings` and `BrokerConfig` are the only table of settings. DescribeConfigs,
AlterConfigs, the command line's help and the documentation are generated from it. Values arrive as text (from a file,
the environment, a flag or a request). An unknown name or a value out of bounds raises `ConfigError` with a message for
users.

Kafka's broker settings that have no effect here are in `without_effect`; BROKER_SETTINGS contains them too.

The value of a topic setting is the topic's own value, else the broker's value (under the topic setting's name or
Kafka's broker-wide name, such as `log.retention.hours`), else the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from flowstone.config.broker import BrokerConfig
from flowstone.config.connection_security import KAFKA_MECHANISMS, LISTENER_PREFIX, split_listener_setting
from flowstone.config.group import (
    GROUP_SETTINGS,
    GroupSettings,
    check_group_defaults,
    effective_group_settings,
    parse_group_settings,
)
from flowstone.config.setting import (
    DAY_MS,
    GIB,
    HOUR_MS,
    INT_MAX,
    KIB,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    Kind,
    Setting,
    Value,
)
from flowstone.config.topic import TopicConfig
from flowstone.config.without_effect import (
    OF_ONE_LISTENER,
    SETTINGS_WITHOUT_EFFECT,
    check_providers,
    check_roles,
    is_setting_of_java_class,
)
from flowstone.errors import ConfigError

__all__ = [
    "BROKER_SETTINGS",
    "DAY_MS",
    "GIB",
    "GROUP_SETTINGS",
    "HOUR_MS",
    "INT_MAX",
    "KIB",
    "LONG_MAX",
    "MIB",
    "MINUTE_MS",
    "SECOND_MS",
    "SETTINGS_WITHOUT_EFFECT",
    "TOPIC_DEFAULT_NAMES",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "GroupSettings",
    "Kind",
    "Setting",
    "TopicConfig",
    "TopicDefaults",
    "Value",
    "broker_value",
    "current_values",
    "effective_group_settings",
    "is_known_broker_name",
    "known_broker_names",
    "nearest",
    "parse_attribute_values",
    "parse_broker_config",
    "parse_group_settings",
    "parse_topic_config",
    "stored_setting",
]


def _setting_fields(config: type[Any] | BrokerConfig | TopicConfig) -> Iterator[dataclasses.Field[Any]]:
    return (each for each in dataclasses.fields(config) if "setting" in each.metadata)


def _table(config: type[Any]) -> dict[str, Setting]:
    return {each.metadata["setting"].name: each.metadata["setting"] for each in _setting_fields(config)}


def _attributes(config: type[Any]) -> dict[str, str]:
    return {each.metadata["setting"].name: each.name for each in _setting_fields(config)}


TOPIC_SETTINGS: Mapping[str, Setting] = _table(TopicConfig)
BROKER_SETTINGS: Mapping[str, Setting] = {**_table(BrokerConfig), **SETTINGS_WITHOUT_EFFECT}
_TOPIC_ATTRIBUTES = _attributes(TopicConfig)
_BROKER_ATTRIBUTES = _attributes(BrokerConfig)

# A broker-wide name -> the topic setting it gives a value to, and the factor to that setting's unit.
TOPIC_DEFAULT_NAMES: Mapping[str, tuple[Setting, int]] = {
    name: (setting, factor)
    for setting in TOPIC_SETTINGS.values()
    for name, factor in ((setting.name, 1), *setting.broker_names)
}
# Kafka's older or shorter names of the same settings.
_BROKER_SYNONYMS = {"broker.id": "node.id", "log.dir": "log.dirs"}


# Longer names are no typing errors and get no suggestion.
NEAREST_NAME_CHARACTERS_MAX = 256


def known_broker_names() -> list[str]:
    return sorted({*BROKER_SETTINGS, *TOPIC_DEFAULT_NAMES, *_BROKER_SYNONYMS})


def is_known_broker_name(name: str) -> bool:
    """Return whether a broker has a setting of this name, one of a single listener included."""
    return (
        name in BROKER_SETTINGS
        or name in TOPIC_DEFAULT_NAMES
        or name in _BROKER_SYNONYMS
        or split_listener_setting(name) is not None
        or stored_setting(name) is not None
    )


def stored_setting(name: str) -> Setting | None:
    """Return the setting without effect that checks values of this name, which may name a listener; else None."""
    if name in SETTINGS_WITHOUT_EFFECT:
        return SETTINGS_WITHOUT_EFFECT[name]
    if not name.startswith(LISTENER_PREFIX) or split_listener_setting(name) is not None:
        return None
    _listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, _, of_mechanism = rest.partition(".")
    own = of_mechanism if mechanism.upper() in KAFKA_MECHANISMS else rest
    setting = BROKER_SETTINGS.get(own) if own.startswith(("ssl.", "sasl.")) or own in OF_ONE_LISTENER else None
    return dataclasses.replace(setting, name=name, has_effect=False) if setting is not None else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that suggests the known name closest to `name`, as the end of a sentence; "" if none is close."""
    import difflib  # only needed after an error; without it a broker starts faster

    if len(name) > NEAREST_NAME_CHARACTERS_MAX:
        return ""  # the comparison takes quadratic time in the length
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


class TopicDefaults(dict[str, str]):
    """Broker-wide values of topic settings, by the topic settings' names and in their units.

    `given` contains the same values as text, under the broker-wide names that were used.
    """

    def __init__(self, values: Mapping[str, str] = MappingProxyType({})) -> None:
        """Parse the values. Raises ConfigError if one is invalid. Ignores names of other settings."""
        super().__init__()
        self.given: dict[str, str] = {}
        for setting in TOPIC_SETTINGS.values():
            text = _checked_broker_value(setting, values)
            if text is not None:
                self[setting.name] = text
            for name, _ in setting.broker_wide_names:
                if name in values:
                    self.given[name] = values[name]
            if setting.name in values:
                self.given[setting.broker_wide_names[0][0]] = values[setting.name]


def parse_broker_config(values: Mapping[str, str]) -> tuple[BrokerConfig, TopicDefaults]:
    """Return the broker's settings and the broker-wide values of topic settings."""
    own: dict[str, Any] = {}
    stored: dict[str, str] = {}
    unknown: list[str] = []
    for given, text in values.items():
        if split_listener_setting(given) is not None:
            continue  # see `broker.authentication.listener_security`
        name = _BROKER_SYNONYMS.get(given, given)
        idle = stored_setting(given)
        if idle is not None:
            stored[given] = idle.format(idle.parse(text))
        elif is_setting_of_java_class(given, values):
            stored[given] = text
        elif name in BROKER_SETTINGS:
            own[_BROKER_ATTRIBUTES[name]] = BROKER_SETTINGS[name].parse(text)
        elif name not in TOPIC_DEFAULT_NAMES:
            unknown.append(given)
    if unknown:
        known = known_broker_names()
        raise ConfigError("; ".join(f"unknown setting {given}{nearest(given, known)}" for given in unknown))
    check_roles(stored)
    check_providers(values)
    config = BrokerConfig(**own, stored=stored)
    check_group_defaults(config)
    return config, TopicDefaults(values)


def parse_attribute_values(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the parsed values of broker settings by the names of their attributes. Raises ConfigError."""
    return {_BROKER_ATTRIBUTES[name]: BROKER_SETTINGS[name].parse(text) for name, text in values.items()}


def _checked_broker_value(setting: Setting, values: Mapping[str, str]) -> str | None:
    """Return `broker_value`. Raises ConfigError, with the name that was used, if it is invalid."""
    try:
        text = broker_value(setting, values)
        if text is not None:
            setting.parse(text)
    except ConfigError as error:
        given = next((name for name, _factor in setting.broker_names if name in values), setting.name)
        raise ConfigError(str(error) if setting.name in values else f"{given}={values[given]}: {error}") from None
    return text


def broker_value(setting: Setting, values: Mapping[str, str]) -> str | None:
    """Return the broker-wide value of a topic setting, in that setting's unit, or None if there is none."""
    for name, factor in ((setting.name, 1), *setting.broker_names):
        if name in values:
            if factor == 1:
                return values[name]
            number = setting.parse(values[name])
            assert isinstance(number, int)
            return str(number if number < 0 else number * factor)
    return None


def parse_topic_config(defaults: Mapping[str, str], overrides: Mapping[str, str]) -> TopicConfig:
    """Return a topic's settings from the broker-wide values and the topic's own."""
    parsed: dict[str, Any] = {}
    for name, text in {**defaults, **overrides}.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"unknown topic setting {name}{nearest(name, TOPIC_SETTINGS)}")
        parsed[_TOPIC_ATTRIBUTES[name]] = setting.parse(text)
    return TopicConfig(**parsed)


def current_values(config: BrokerConfig | TopicConfig) -> dict[str, str]:
    """Return every setting's value as text, by name; of settings without effect, those that the broker was given."""
    values = {
        each.metadata["setting"].name: each.metadata["setting"].format(getattr(config, each.name))
        for each in _setting_fields(config)
    }
    return {**values, **config.stored} if isinstance(config, BrokerConfig) else values
