from __future__ import annotations

import os
import ssl

import pytest
from cryptography.hazmat.primitives import serialization

from flowstone.errors import ConfigError
from flowstone.ports.pem_source import ClientAuth, PemSource
from flowstone.ports.tls_contexts import FollowedContext, client_context, server_context
from tests.support.security.secured import authority


@pytest.fixture(scope="module")
def server():
    return authority().issue("broker", ["localhost"])


def test_a_key_is_taken_from_a_file_or_from_the_settings(tmp_path, server):
    (tmp_path / "all.pem").write_text(server.certificate + server.key)  # in any order
    server_context(PemSource(str(tmp_path / "all.pem")), ClientAuth.NONE)
    context = server_context(PemSource(key=server.key, certificate_chain=server.certificate), ClientAuth.NONE)
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_an_encrypted_key_needs_its_password(server):
    key = serialization.load_pem_private_key(server.key.encode(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    ).decode()
    source = PemSource(key=encrypted, certificate_chain=server.certificate, key_password="password")
    server_context(source, ClientAuth.NONE)
    with pytest.raises(ConfigError, match=r"ssl\.key\.password"):
        server_context(PemSource(key=encrypted, certificate_chain=server.certificate), ClientAuth.NONE)
    assert "password=" not in repr(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (PemSource(), "flowstone secure init"),
        (PemSource("/nowhere.pem"), "/nowhere.pem cannot be read: No such file"),
        (PemSource(key="x", certificate_chain="y"), "expected a private key and a certificate in PEM form"),
        (PemSource(key="x", versions=("TLSv1.1",)), "choose from TLSv1.2, TLSv1.3, not TLSv1.1"),
        (PemSource(key="x", cipher_suites=("NONE",)), "OpenSSL knows none of NONE"),
    ],
)
def test_what_cannot_be_used_is_named(source, message):
    with pytest.raises(ConfigError, match=message):
        server_context(source, ClientAuth.NONE)


def test_a_key_of_another_certificate_is_refused(server):
    other = authority().issue("other")
    with pytest.raises(ConfigError, match="belong together"):
        server_context(PemSource(key=other.key, certificate_chain=server.certificate), ClientAuth.NONE)


def test_clients_can_only_be_verified_with_a_trust_store(server):
    source = PemSource(key=server.key, certificate_chain=server.certificate)
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location"):
        server_context(source, ClientAuth.REQUIRED)
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.certificates: no certificates"):
        client_context(PemSource(trusted_certificates="x"))


def test_cipher_suites_have_the_names_of_the_standards_or_of_openssl(server):
    names = ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256")
    context = client_context(PemSource(cipher_suites=names, versions=("TLSv1.2",)))
    chosen = {each["name"] for each in context.get_ciphers() if not each["name"].startswith("TLS_")}
    assert chosen == {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"}


def test_a_context_follows_its_files(tmp_path, server, caplog):
    path = tmp_path / "server.pem"
    path.write_text(server.pem)
    followed = FollowedContext((str(path),), lambda: server_context(PemSource(str(path)), ClientAuth.NONE))
    first = followed.current
    assert not followed.refresh()
    path.write_text("broken")
    assert not followed.refresh()
    assert followed.current is first
    assert "the previous ones stay in use" in caplog.text
    replacement = tmp_path / "new.pem"
    replacement.write_text(authority().issue("again").pem)
    os.replace(replacement, path)
    assert followed.refresh()
    assert followed.current is not first
