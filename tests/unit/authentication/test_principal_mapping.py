from __future__ import annotations

import pytest

from flowstone.authentication.principal_mapping import PrincipalMapping
from flowstone.errors import ConfigError

NAME = "CN=Kafka-1,OU=Ops,O=Example,C=DE"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=(.*?),.*$/$1/", "Kafka-1"),
        ("RULE:^CN=(.*?),.*$/$1/L", "kafka-1"),
        ("RULE:^CN=(.*?),.*$/$1/U", "KAFKA-1"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/, DEFAULT", "Kafka-1@Ops"),
        ("RULE:^UID=(.*)$/$1/,RULE:.*O=(\\w+).*/org-$1/L , DEFAULT", "org-example"),
        ("RULE:^UID=(.*)$/$1/", None),
        ("RULE:^CN=(.*?),.*$/a\\/$1/", "a/Kafka-1"),
        ("RULE:.*/$9/,DEFAULT", NAME),
    ],
)
def test_the_first_rule_that_matches_gives_the_user(rules, user):
    assert PrincipalMapping(rules).user_of(NAME) == user


@pytest.mark.parametrize("rules", ["RULE:x", "RULE:(/x/", "default", "RULE:a/b/X", "DEFAULT DEFAULT"])
def test_a_malformed_rule_is_refused(rules):
    with pytest.raises(ConfigError, match=r"^ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_a_name_that_is_too_long_has_no_user():
    assert PrincipalMapping("DEFAULT").user_of("CN=" + "x" * 3000) is None
