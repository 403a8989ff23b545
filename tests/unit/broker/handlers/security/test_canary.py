"""Secrets are set to one word, and everything that a broker tells is searched for it."""

from __future__ import annotations

import json
import logging
from base64 import b64encode

from flowstone.broker.http.pages.page_list import PAGES
from flowstone.config import BROKER_SETTINGS
from flowstone.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import authenticate, authority, handshake, write_files
from tests.support.security.tokens import app_with_tokens, create, log_in_with, logged_in

CANARY = "canary-b7c1e0"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BROKER_RESOURCE = 4
# Every page that returns a document; of a topic that does not exist, if it needs one.
DOCUMENTS = [
    f"{page.path}?topic=t&partition=0&offset=0" for page in PAGES if page.method == "GET" and page.subscribe is None
]


def test_no_secret_is_told(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    server = authority().issue("broker", ["localhost"])
    files = write_files(tmp_path)
    secrets = {
        "sasl.jaas.config": f'{PLAIN} required username="{CANARY}-u" password="{CANARY}" user_bob="{CANARY}";',
        "ssl.key.password": CANARY,
        "zookeeper.ssl.keystore.password": CANARY,
        "ssl.keystore.key": server.key,
        "ssl.keystore.certificate.chain": server.certificate,
    }
    settings = {
        **{name: value for name, value in files.items() if "keystore" not in name},
        **secrets,
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_eve="{CANARY}";',
        "http.listener": "127.0.0.1:0",
    }
    with RunningApp(str(tmp_path / "data"), **settings) as broker, broker.client() as client:
        resource = DescribeConfigsRequestResource(
            resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)
        answer = client.ask(4, request)
        described = {each.name: each for each in answer.results[0].configs}
        for name in secrets:
            assert (described[name].value, described[name].is_sensitive) == (None, True)
            assert [each.value for each in described[name].synonyms if each.value] == []
        assert not described["log.dirs"].is_sensitive
        with broker.client("SASL_PLAINTEXT") as login:
            handshake(login, "PLAIN")
            authenticate(login, f"\0bob\0{CANARY}-wrong".encode())
        pages = [broker.get(path) for path in DOCUMENTS]
        told = [repr(answer), repr(broker.app.config), caplog.text, json.dumps(pages)]
    key_line = server.key.splitlines()[1]
    for text in told:
        assert CANARY not in text.replace(f"{CANARY}-u", "")
        assert key_line not in text
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert CANARY.encode() not in stored


def test_no_password_of_a_token_is_told_or_stored(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    # Slow enough that every request is logged.
    settings = {"delegation.token.secret.key": f"{CANARY}-secret-key", "http.listener": "127.0.0.1:0"}
    with app_with_tokens(tmp_path, **settings, **{"slow.request.ms": "0"}) as broker:
        with logged_in(broker, "alice") as alice:
            token = create(alice, "bob")
            alice.ask(2, RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1))
            alice.ask(2, RenewDelegationTokenRequest(hmac=b"wrong " + token.hmac, renew_period_ms=-1))
            alice.ask(3, DescribeDelegationTokenRequest(owners=None))
            with broker.client("SASL_PLAINTEXT") as client:
                assert log_in_with(client, token.token_id, token.hmac).error_code == 0
            with broker.client("SASL_PLAINTEXT") as client:
                log_in_with(client, token.token_id, b"wrong " + token.hmac)
        pages = [broker.get(path) for path in DOCUMENTS]
        told = [repr(broker.app.config), repr(broker.app.services.metadata.image), caplog.text, json.dumps(pages)]
    assert "created a delegation token of User:alice" in caplog.text
    stored = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(token.token_id.encode() in each for each in stored)
    secrets = (CANARY, b64encode(token.hmac).decode(), token.hmac.hex(), repr(token.hmac)[2:-1])
    for secret in secrets:
        assert not any(secret in text for text in told)
        assert not any(secret.encode() in each for each in stored)
    assert not any(token.hmac in each for each in stored)


def test_every_setting_that_may_hold_a_secret_is_sensitive():
    suspicious = ("password", "secret", "jaas", "keystore.key", "token")
    named = {name for name in BROKER_SETTINGS if any(each in name for each in suspicious)}
    # Files and addresses where secrets are can be shown, their contents are not; times are no secrets.
    times = {name for name in named if name.startswith("delegation.token.") and name.endswith(".ms")}
    assert {name for name in named if not BROKER_SETTINGS[name].is_sensitive} == {
        "http.tokens.file",
        "sasl.oauthbearer.token.endpoint.url",
        *times,
    }
    assert len(times) == 3
