from __future__ import annotations

import pytest

from flowstone.app import App
from flowstone.broker.network.exposure import is_loopback
from flowstone.errors import ConfigError
from tests.support.security.secured import write_files

SECURED = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:admin"}
ELSEWHERE = "0.0.0.0:0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST."])
def test_loopback_needs_nothing(host, tmp_path):
    assert is_loopback(host)
    App({"log.dirs": str(tmp_path), "listeners": f"PLAINTEXT://{f'[{host}]' if ':' in host else host}:0"})


@pytest.mark.parametrize(
    ("listener", "settings", "lacks"),
    [
        ("PLAINTEXT", {}, "no encryption, no login, no authorizer"),
        ("PLAINTEXT", SECURED, "no encryption, no login:"),
        ("SSL", SECURED, "no login:"),
        ("SASL_PLAINTEXT", SECURED, "no encryption:"),
        ("SASL_SSL", {}, "no authorizer:"),
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "broker.example.org"])
def test_a_listener_that_others_reach_must_be_secured(tmp_path, host, listener, settings, lacks):
    values = {
        "log.dirs": str(tmp_path),
        "listeners": f"{listener}://{host}:9092",
        "advertised.listeners": f"{listener}://broker.example.org:9092",
        **settings,
    }
    with pytest.raises(
        ConfigError, match=f"can be reached from other machines and has {lacks}.*secure init.*--insecure"
    ):
        App(values)
    App({**values, "listeners.insecure.enable": "true"})


def test_encryption_logins_and_an_authorizer_are_enough(tmp_path):
    values = {
        "log.dirs": str(tmp_path),
        "listeners": f"SASL_SSL://{ELSEWHERE},MUTUAL://192.0.2.1:0",
        "advertised.listeners": "SASL_SSL://broker.example.org:9092,MUTUAL://broker.example.org:9093",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,MUTUAL:SSL",
        "listener.name.mutual.ssl.client.auth": "required",
        **SECURED,
        **write_files(tmp_path),
    }
    App(values)


@pytest.mark.parametrize("settings", [{}, {"http.ssl.enable": "true"}, {"http.tokens.file": "tokens"}])
def test_an_http_address_that_others_reach_must_be_secured(tmp_path, settings):
    values = {"log.dirs": str(tmp_path), "http.listener": "0.0.0.0:9080", **settings}
    with pytest.raises(ConfigError, match=r"needs http\.ssl\.enable=true and http\.tokens\.file.*--insecure"):
        App(values)
    App({**values, "listeners.insecure.enable": "true"})
    App({**values, "http.ssl.enable": "true", "http.tokens.file": "tokens"})
