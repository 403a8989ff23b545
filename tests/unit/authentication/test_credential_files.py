from __future__ import annotations

import pytest

from flowstone.authentication.credential_files import format_credentials, parse_credentials
from flowstone.authentication.scram import ScramMechanism
from flowstone.errors import ConfigError
from tests.support.security.secured import credential

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def test_credentials_are_read_as_they_were_written():
    credentials = {("admin", SHA_512): credential(SHA_512), ("b", SHA_256): credential(SHA_256)}
    text = format_credentials(credentials)
    assert parse_credentials("# a comment\n\n" + text, "file") == credentials
    assert text.startswith('SCRAM-SHA-512=[name=admin,iterations=8192,salt="YWJj')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SHA-512", "SHA-513"),
        ("iterations=8192", "iterations=1"),
        ('storedkey="', 'storedkey="!'),
        ('salt="YWJj', 'x="'),
    ],
)
def test_a_malformed_line_is_named_and_not_repeated(old, new):
    text = format_credentials({("admin", SHA_512): credential(SHA_512)})
    with pytest.raises(ConfigError, match=r"^file, line 1: ") as caught:
        parse_credentials(text.replace(old, new), "file")
    assert "YWJj" not in str(caught.value)


def test_a_key_of_another_mechanism_is_refused():
    text = format_credentials({("admin", SHA_512): credential(SHA_256)})
    with pytest.raises(ConfigError, match="length"):
        parse_credentials(text, "file")
