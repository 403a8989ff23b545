from __future__ import annotations

import pytest

from flowstone.broker.authentication.listener_security import ListenerSecurity, parse_security
from flowstone.config import parse_broker_config
from flowstone.errors import ConfigError
from flowstone.ports.pem_source import ClientAuth

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def parse(values: dict[str, str], *listeners: str) -> dict[str, ListenerSecurity]:
    return parse_security(values, parse_broker_config(values)[0], listeners)


def test_a_listener_has_the_protocol_of_its_name_or_of_the_map():
    found = parse({"listener.security.protocol.map": "INSIDE:ssl,OUTSIDE:SASL_SSL"}, "INSIDE", "OUTSIDE", "PLAINTEXT")
    assert [each.protocol for each in found.values()] == ["SSL", "SASL_SSL", "PLAINTEXT"]
    assert [each.has_tls for each in found.values()] == [True, True, False]
    assert [each.has_sasl for each in found.values()] == [False, True, False]
    assert parse({}, "ANY")["ANY"].protocol == "PLAINTEXT"


def test_a_setting_of_one_listener_overrides_the_one_for_all():
    values = {
        "ssl.keystore.location": "all.pem",
        "listener.name.a.ssl.keystore.location": "a.pem",
        "listener.name.a.ssl.client.auth": "required",
        "listener.name.a.connections.max.reauth.ms": "5",
        "listener.security.protocol.map": "A:SASL_SSL,B:SSL",
    }
    found = parse(values, "A", "B")
    assert (found["A"].pem.keystore_location, found["A"].client_auth) == ("a.pem", ClientAuth.REQUIRED)
    assert (found["B"].pem.keystore_location, found["B"].client_auth) == ("all.pem", ClientAuth.NONE)
    assert found["A"].reauth_ms == 5
    assert found["A"].authenticates
    assert not found["B"].authenticates


def test_users_of_plain_and_the_own_login_come_from_jaas_settings():
    values = {
        "listener.security.protocol.map": "A:SASL_PLAINTEXT",
        "sasl.jaas.config": f'{PLAIN} username="broker" password="pw";',
        "listener.name.a.plain.sasl.jaas.config": f'{PLAIN} user_alice="secret";',
    }
    found = parse(values, "A")["A"]
    assert found.users == {"alice": "secret"}
    assert (found.own_login.username, found.own_login.password) == ("broker", "pw")
    assert "secret" not in repr(found)
    assert "pw" not in repr(found)
    assert "pw" not in repr(parse_broker_config(values)[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listener.security.protocol.map": "A"}, "'A' is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A:TLS"}, "'A:TLS' is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "B:SSL"}, "no protocol for the listener A"),
        ({"listener.name.b.ssl.client.auth": "none"}, "there is no listener named B"),
        ({"listener.name.a.ssl.client.auth": "some"}, "listener.name.a.ssl.client.auth: 'some' is not one of"),
        ({"listener.name.a.plain.sasl.jaas.config": "x"}, "listener.name.a.plain.sasl.jaas.config: the login module"),
    ],
)
def test_what_does_not_fit_is_refused(values, message):
    values = {"listener.security.protocol.map": "A:SASL_SSL", **values}
    with pytest.raises(ConfigError, match=message):
        parse(values, "A")


def test_a_context_needs_a_key():
    with pytest.raises(ConfigError, match="flowstone secure init"):
        parse({}, "SSL")["SSL"].server_context()
