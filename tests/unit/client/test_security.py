from __future__ import annotations

import pytest

from flowstone.client.security import PLAINTEXT, parse_security
from flowstone.errors import ConfigError
from tests.support.security.secured import authority

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="bob" password="canary";'
LOGIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}


def test_kafkas_and_librdkafkas_names_mean_the_same(tmp_path):
    (tmp_path / "ca.pem").write_text(authority().certificate)
    trusted = str(tmp_path / "ca.pem")
    kafka = parse_security({**LOGIN, "ssl.truststore.location": trusted})
    other = parse_security(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "bob",
            "sasl.password": "canary",
            "ssl.ca.location": trusted,
        }
    )
    assert kafka == other
    assert kafka.librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bob",
        "sasl.password": "canary",
        "ssl.ca.pem": authority().certificate,
    }
    assert "canary" not in repr(kafka)
    assert PLAINTEXT.librdkafka() == {}


def test_a_key_is_given_to_librdkafka_as_text(tmp_path):
    alice = authority().issue("alice")
    (tmp_path / "alice.pem").write_text(alice.certificate + alice.key)
    values = {"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / "alice.pem")}
    found = parse_security({**values, "ssl.endpoint.identification.algorithm": ""}).librdkafka()
    assert found["ssl.key.pem"].strip() == alice.key.strip()
    assert found["ssl.certificate.pem"].strip() == alice.certificate.strip()
    assert found["ssl.endpoint.identification.algorithm"] == "none"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"security.protocol": "TLS"}, "security.protocol: 'TLS' is not one of"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism: 'GSSAPI' is not one of"),
        ({"sasl.jaas.config": ""}, "a login needs a user and a password"),
        ({"ssl.truststore.type": "JKS"}, "only PEM is supported"),
        ({"ssl.trustore.location": "x"}, "this client has no such property"),
    ],
)
def test_what_does_not_fit_is_named_without_secrets(values, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_security({**LOGIN, **values})
    assert "canary" not in str(caught.value)
