from __future__ import annotations

import pytest

from flowstone.config.properties import parse_properties
from flowstone.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b c ", {"a": "b c "}),
        ("a: b", {"a": "b"}),
        ("a b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("# a=b\n! c=d\n\n \t\ne=f", {"e": "f"}),
        ("a=b,\\\n    c", {"a": "b,c"}),
        ("a=b\\", {"a": "b"}),
        (r"a=C:\\dir", {"a": "C:\\dir"}),
        (r"a\:b\ c=d", {"a:b c": "d"}),
        (r"a=\u00e9\t", {"a": "é\t"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text, "file") == expected


def test_a_line_without_a_name_is_refused_with_its_number() -> None:
    with pytest.raises(ConfigError, match=r"broker\.properties, line 2: expected name=value"):
        parse_properties("a=b\n=c", "broker.properties")
