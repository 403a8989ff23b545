from __future__ import annotations

import pytest

from flowstone.config import BROKER_SETTINGS, is_known_broker_name, parse_broker_config
from flowstone.config.connection_security import PER_LISTENER, split_listener_setting
from flowstone.errors import ConfigError


def test_settings_of_one_listener_are_known_by_their_prefix():
    assert split_listener_setting("listener.name.inside.ssl.client.auth") == ("INSIDE", "ssl.client.auth")
    mechanism = "listener.name.a.scram-sha-512.sasl.jaas.config"
    assert split_listener_setting(mechanism) == ("A", "scram-sha-512.sasl.jaas.config")
    for name in ("ssl.client.auth", "listener.name.a.log.dirs", "listener.name.a.gssapi.sasl.jaas.config"):
        assert split_listener_setting(name) is None
    assert is_known_broker_name(mechanism)
    with pytest.raises(ConfigError, match=r"unknown setting listener\.name\.a\.log\.dirs"):
        parse_broker_config({"listener.name.a.log.dirs": "x"})


def test_every_setting_of_a_listener_is_one_of_the_broker():
    assert set(BROKER_SETTINGS) >= PER_LISTENER
