from __future__ import annotations

import pytest

from flowstone.authentication.jaas import parse_jaas
from flowstone.errors import ConfigError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_options_are_parsed_as_kafka_does():
    text = f'{PLAIN} required\n  username="ad\\"min" password=\'x\' user_alice="a b;c" ;'
    found = parse_jaas(text.replace("'x'", '"x"'))
    assert (found.username, found.password, found.users) == ('ad"min', "x", {"alice": "a b;c"})
    assert parse_jaas(f"{PLAIN} required;").options == {}
    assert parse_jaas("  ").options == {}
    assert parse_jaas(f"kafkashaded.{PLAIN} required username=bob;").username == "bob"
    assert "x" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        'com.sun.security.auth.module.JndiLoginModule required user.provider.url="ldap://x";',  # CVE-2023-25194
        f'{PLAIN} username="secret";',
        f'{PLAIN} required username="secret"',
        f'{PLAIN} required username="secret;',
        f'{PLAIN} required username="secret" more;',
    ],
)
def test_a_malformed_text_is_refused_without_repeating_it(text):
    with pytest.raises(ConfigError, match=r"^sasl\.jaas\.config") as caught:
        parse_jaas(text)
    assert "secret" not in str(caught.value)
