from __future__ import annotations

import pytest

from flowstone.broker.http.access import FORBIDDEN, MISDIRECTED, SETTING, HttpAccess
from flowstone.errors import ConfigError

OWN_HOSTS = ("0.0.0.0", "broker.example.org", "Machine")


def status(access: HttpAccess, method: str = "GET", **headers: str) -> int | None:
    """Of the refusal, None if the request is let in; headers with underscores for dashes."""
    encoded = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    refusal = access.refusal(method, encoded)
    return None if refusal is None else refusal.status


@pytest.fixture
def access() -> HttpAccess:
    return HttpAccess(OWN_HOSTS, ["console.example.org"])


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9080",
        "localhost.:9080",
        "127.0.0.1:9080",
        "127.0.0.1",
        "[::1]:9080",
        "[::1]",
        "10.42.0.17:9080",
        "[fd00::7]:9080",
        "broker.example.org:9080",
        "Broker.Example.Org",
        "machine:9080",
        "console.example.org",
        "console.example.org:",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_brokers_own_names_and_addresses_are_let_in(access: HttpAccess, method: str, host: str) -> None:
    assert status(access, method, host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "evil.example.com:9080",
        "localhost.evil.example.com",
        "127.0.0.1.evil.example.com",
        "xbroker.example.org",
        "broker.example.org.evil.com",
        "broker.example.org:9080.evil.com",
        "localhost:x",
        "localhost:80:80",
        "[localhost]:80",
        "[::1",
        "::1",
        "[::1]x",
        "",
        ":9080",
        "2130706433",
        "0x7f.1",
        "\xe9vil",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "DELETE"])
def test_any_other_host_is_refused_on_every_method(access: HttpAccess, method: str, host: str) -> None:
    assert status(access, method, host=host) == MISDIRECTED


def test_a_refused_host_is_told_the_setting(access: HttpAccess) -> None:
    refusal = access.refusal("GET", [(b"host", b"evil.example.com:9080")])
    assert refusal is not None
    assert "'evil.example.com:9080'" in refusal.reason
    assert SETTING in refusal.reason


def test_a_refusal_quotes_little(access: HttpAccess) -> None:
    refusal = access.refusal("GET", [(b"host", b"x" * 10_000)])
    assert refusal is not None
    assert len(refusal.reason) < 500


def test_a_request_without_a_host_is_no_browsers(access: HttpAccess) -> None:
    assert status(access) is None
    assert status(access, "POST") is None


@pytest.mark.parametrize(
    ("origin", "host", "is_let_in"),
    [
        ("http://127.0.0.1:9080", "127.0.0.1:9080", True),
        ("http://LOCALHOST:9080", "localhost:9080", True),
        ("https://broker.example.org", "broker.example.org", True),
        ("https://console.example.org", "127.0.0.1:9080", True),
        ("https://console.example.org:8443", "127.0.0.1:9080", True),
        ("http://127.0.0.1:3000", "127.0.0.1:9080", False),
        ("http://localhost:9080", "127.0.0.1:9080", False),
        ("http://evil.example.com", "127.0.0.1:9080", False),
        ("http://broker.example.org", "127.0.0.1:9080", False),
        ("null", "127.0.0.1:9080", False),
        ("", "127.0.0.1:9080", False),
        ("file://", "127.0.0.1:9080", False),
        ("127.0.0.1:9080", "127.0.0.1:9080", False),
        ("http://console.example.org.evil.com", "127.0.0.1:9080", False),
        ("http://console.example.org@evil.com", "127.0.0.1:9080", False),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "ANYTHING"])
def test_only_the_brokers_own_pages_may_change_something(
    access: HttpAccess, method: str, origin: str, host: str, is_let_in: bool
) -> None:
    assert status(access, method, host=host, origin=origin) == (None if is_let_in else FORBIDDEN)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_needs_no_origin_of_ours(access: HttpAccess, method: str) -> None:
    """The browser keeps the answer from a page of another site."""
    assert status(access, method, host="localhost", origin="http://evil.example.com") is None


@pytest.mark.parametrize(
    ("site", "expected"),
    [("same-origin", None), ("none", None), ("same-site", FORBIDDEN), ("cross-site", FORBIDDEN), ("?", FORBIDDEN)],
)
def test_a_browsers_word_on_where_a_request_comes_from_counts(
    access: HttpAccess, site: str, expected: int | None
) -> None:
    assert status(access, "POST", host="localhost", sec_fetch_site=site) == expected


def test_all_hosts_can_be_allowed_and_other_sites_still_change_nothing() -> None:
    access = HttpAccess((), ["*"])
    assert status(access, host="anything.example.com") is None
    assert status(access, "POST", host="anything.example.com", origin="http://evil.example.com") == FORBIDDEN


@pytest.mark.parametrize("text", ["http://host", "host:80", "a b", "*.example.org", "-", "a/b"])
def test_a_setting_that_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=SETTING):
        HttpAccess((), [text])
