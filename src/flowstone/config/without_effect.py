"""The broker settings of Apache Kafka that are accepted, stored and shown, and that change nothing here.

A configuration file of Kafka, and tools that copy settings, work unchanged: only names that Kafka does not know are
errors. Values are checked as Kafka does. The names, types, defaults and bounds are in kafka_broker_settings.txt.
A setting that names a Java class must have Kafka's default, because such classes decide who may do what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowstone.config.setting import Kind, Setting, Value
from flowstone.errors import ConfigError

_TABLE = Path(__file__).with_name("kafka_broker_settings.txt")
_PROVIDERS = "config.providers"
# Names that begin so are settings of a Java class; other settings say how they begin, and these are the defaults.
_PREFIX_SETTINGS = {
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
}
# Settings that Kafka takes for one listener, besides those whose names begin with ssl. or sasl.
OF_ONE_LISTENER = frozenset(
    {
        "connections.max.reauth.ms",
        "max.connection.creation.rate",
        "max.connections",
        "num.network.threads",
        "principal.builder.class",
    }
)
_PROVIDER_SETTING = re.compile(r"config\.providers\.[^.]+\.(class|param\..+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConfig:
    """The values that a broker was given of settings without effect, by name, as they were written."""

    stored: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)


def _read() -> Iterator[Setting]:
    reason = ""
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("reason: "):
            reason = line.removeprefix("reason: ")
        elif line and not line.startswith("#"):
            facts, _, meaning = line.partition(" | ")
            yield _setting(facts.split(), f"{meaning} No effect: {reason}.")


def _setting(facts: list[str], doc: str) -> Setting:
    name, kind_name, default_text, allowed, changes = facts
    kind = Kind[kind_name.upper()]
    default: Value | None = None
    if default_text != "null":
        default = Setting(name, kind, None, doc).parse("" if default_text == '""' else default_text)
    low, dots, high = allowed.partition("..")
    choices: tuple[str, ...] = ()
    if allowed == "default":
        choices = ("",) if default is None else (str(default),)
    elif not dots and allowed != "any":
        choices = tuple(allowed.split(","))
    return Setting(
        name,
        kind,
        default,
        doc,
        low=_bound(kind, low) if dots else None,
        high=_bound(kind, high) if dots else None,
        choices=choices,
        read_only=changes in ("static", "hidden"),
        has_effect=False,
        is_hidden=changes == "hidden",
        per_broker=changes == "broker",
        any_case=name == "sasl.oauthbearer.assertion.algorithm",
    )


def _bound(kind: Kind, text: str) -> float | None:
    if not text:
        return None
    return float(text) if kind is Kind.DOUBLE else int(text)


SETTINGS_WITHOUT_EFFECT: Mapping[str, Setting] = {each.name: each for each in _read()}


def is_setting_of_java_class(name: str, values: Mapping[str, str]) -> bool:
    """Return whether a name is passed on to a Java class by Kafka, by one of the prefixes in `values`."""
    prefixes = [values.get(setting, default) for setting, default in _PREFIX_SETTINGS.items()]
    return bool(_PROVIDER_SETTING.fullmatch(name)) or any(name.startswith(each) for each in prefixes if each)


def check_roles(stored: Mapping[str, str]) -> None:
    """Raise ConfigError if process.roles makes the process a controller only."""
    if stored.get("process.roles") == "controller":
        raise ConfigError(
            "process.roles=controller: no process is only a controller; start brokers, one of which becomes the "
            "controller"
        )


def check_providers(values: Mapping[str, str]) -> None:
    """Raise ConfigError if a value is to be read by a provider of config.providers, since there are none here."""
    for provider in filter(None, (each.strip() for each in values.get(_PROVIDERS, "").split(","))):
        for name, text in values.items():
            if f"${{{provider}:" in text:
                raise ConfigError(
                    f"{name}: its value refers to the provider {provider} of {_PROVIDERS}, and this broker has "
                    "no providers; write the value itself, or set it in the environment"
                )
