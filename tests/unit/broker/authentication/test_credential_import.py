from __future__ import annotations

import logging

import pytest

from flowstone.authentication.credential_files import format_credentials
from flowstone.authentication.scram import ScramMechanism
from flowstone.errors import StartupError
from tests.support.security.secured import PASSWORD, USER, authenticate, credential, handshake, log_in, secured_app


def test_the_credentials_of_the_file_are_stored_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    broker = secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0")
    with broker, broker.client("SASL_PLAINTEXT") as client:
        assert not log_in(client).error_code
        assert broker.app.services.metadata.image.scram_secret
    assert "stored the credentials of admin" in caplog.text
    caplog.clear()
    other = format_credentials({(USER, each): credential(each, "another password") for each in ScramMechanism})
    (tmp_path / "credentials").write_text(other)
    (tmp_path / "credentials").rename(tmp_path / "changed")
    settings = {"scram.credentials.file": str(tmp_path / "changed")}
    from tests.support.running_app import RunningApp

    again = RunningApp(str(tmp_path / "data"), listeners="SASL_PLAINTEXT://127.0.0.1:0", **settings)
    with again, again.client("SASL_PLAINTEXT") as client:
        assert not log_in(client, password=PASSWORD).error_code
    assert "stored the credentials" not in caplog.text
    assert credential(ScramMechanism.SHA_512).stored_key.hex() not in caplog.text


def test_a_file_that_others_may_read_is_refused(tmp_path):
    broker = secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0")
    (tmp_path / "credentials").chmod(0o640)
    with pytest.raises(StartupError, match="chmod 600"):
        broker.__enter__()


def test_a_missing_file_is_named(tmp_path):
    broker = secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0")
    (tmp_path / "credentials").unlink()
    with pytest.raises(StartupError, match=r"credentials cannot be read: No such file"):
        broker.__enter__()


def test_a_message_of_plain_is_checked_against_scram(tmp_path):
    broker = secured_app(tmp_path, "SASL_PLAINTEXT://127.0.0.1:0")
    with broker, broker.client("SASL_PLAINTEXT") as client:
        handshake(client, "PLAIN")
        assert not authenticate(client, f"\0{USER}\0{PASSWORD}".encode()).error_code
