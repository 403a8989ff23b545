"""Kafka's broker settings that have no effect: their values are checked, stored, and looked up by name."""

from __future__ import annotations

import dataclasses

import pytest

from flowstone.config import (
    BROKER_SETTINGS,
    SETTINGS_WITHOUT_EFFECT,
    BrokerConfig,
    Kind,
    current_values,
    parse_broker_config,
)
from flowstone.config.without_effect import is_setting_of_java_class
from flowstone.errors import ConfigError


def test_a_value_is_stored_and_its_default_is_not() -> None:
    config, _ = parse_broker_config({"num.io.threads": " 12 ", "metrics.recording.level": "DEBUG"})
    assert config.stored == {"num.io.threads": "12", "metrics.recording.level": "DEBUG"}
    values = current_values(config)
    assert values["num.io.threads"] == "12"
    assert "num.network.threads" not in values


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("num.io.threads", "0", "below the minimum"),
        ("num.io.threads", "many", "not a whole number"),
        ("remote.log.manager.task.retry.jitter", "0.6", "above the maximum"),
        ("sasl.login.refresh.buffer.seconds", "40000", "above the maximum"),
        ("remote.log.storage.system.enable", "yes", "not true or false"),
        ("process.roles", "broker,observer", "'observer' is not one of"),
        ("process.roles", "broker,", "empty item"),
        ("process.roles", "controller", "no process is only a controller"),
        ("principal.builder.class", "org.example.Builder", "cannot load a Java class"),
        ("create.topic.policy.class.name", "org.example.Policy", "cannot load a Java class"),
        ("listener.name.external.principal.builder.class", "org.example.Builder", "cannot load a Java class"),
    ],
)
def test_a_value_that_kafka_refuses_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        parse_broker_config({name: text})
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("principal.builder.class", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
        ("sasl.oauthbearer.assertion.algorithm", "es256"),
        ("sasl.login.connect.timeout.ms", "10"),
        ("internal.metadata.log.segment.bytes", "10"),
        ("listener.name.external.ssl.keystore.password", "secret"),
        ("listener.name.external.gssapi.sasl.jaas.config", "a.Module required;"),
        ("rsm.config.bucket", "b"),
        ("config.providers.file.class", "org.apache.kafka.common.config.provider.FileConfigProvider"),
    ],
)
def test_a_value_that_kafka_accepts_is_stored(name: str, text: str) -> None:
    config, _ = parse_broker_config({name: text})
    assert list(config.stored) == [name]
    assert "secret" not in repr(config)


def test_other_prefixes_of_java_classes_are_those_of_their_settings() -> None:
    values = {"remote.log.storage.manager.impl.prefix": "tiers."}
    assert is_setting_of_java_class("tiers.bucket", values)
    assert not is_setting_of_java_class("rsm.config.bucket", values)


def test_a_value_that_a_provider_would_read_is_refused() -> None:
    values = {"config.providers": "file", "ssl.key.password": "${file:/etc/secrets:key}"}
    with pytest.raises(ConfigError, match=r"ssl\.key\.password: .* provider file"):
        parse_broker_config(values)
    parse_broker_config({"config.providers": "file", "broker.rack": "${other:x}"})


def test_every_entry_of_the_table_has_a_valid_default_and_says_why_it_has_no_effect() -> None:
    assert len(SETTINGS_WITHOUT_EFFECT) > 190
    fields = {each.metadata["setting"].name for each in dataclasses.fields(BrokerConfig) if "setting" in each.metadata}
    assert not fields & set(SETTINGS_WITHOUT_EFFECT)
    for setting in SETTINGS_WITHOUT_EFFECT.values():
        assert BROKER_SETTINGS[setting.name] is setting
        assert " No effect: " in setting.doc
        if setting.default is not None and setting.default != ():
            assert setting.parse(setting.format(setting.default)) == setting.default
        assert setting.is_sensitive == (setting.kind is Kind.PASSWORD)
