from __future__ import annotations

from base64 import b64decode

import pytest

from flowstone.authentication.scram import (
    ScramClient,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ScramServer,
    credential_of,
    has_password,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
# RFC 7677, section 3.
RFC_SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_CLIENT_NONCE, RFC_SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
RFC_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
RFC_PROOF = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, b"salt", 4096), b"salt", 4096)


def logged_in(
    mechanism: ScramMechanism, user: str, password: str, known: ScramCredential, *, extensions: str = ""
) -> ScramServer:
    client = ScramClient(mechanism, user, "client-nonce", extensions)
    server = ScramServer(mechanism, "server-nonce")
    server.parse_first(client.first())
    challenge = client.parse_challenge(server.challenge(known))
    salted = salted_password(mechanism, password, challenge.salt, challenge.iterations)
    client.check(server.final(client.final(salted)))
    return server


def test_the_messages_are_those_of_the_standard():
    client = ScramClient(SHA_256, "user", RFC_CLIENT_NONCE)
    server = ScramServer(SHA_256, RFC_SERVER_NONCE)
    salted = salted_password(SHA_256, "pencil", RFC_SALT, 4096)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server.parse_first(client.first())
    first = server.challenge(credential_of(SHA_256, salted, RFC_SALT, 4096))
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    client.parse_challenge(first)
    assert client.final(salted) == RFC_FINAL
    assert server.final(RFC_FINAL) == RFC_PROOF
    client.check(RFC_PROOF)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["alice", "a=b,c", "\u00fcser"])
def test_a_user_with_the_password_logs_in(mechanism, user):
    server = logged_in(mechanism, user, "se=,cret", credential(mechanism, "se=,cret"), extensions=",tokenauth=true")
    assert server.user == user
    assert server.extensions == {"tokenauth": "true"}


def test_another_password_is_refused():
    with pytest.raises(ScramError, match="the password is wrong"):
        logged_in(SHA_512, "alice", "guess", credential(SHA_512, "secret"))
    assert has_password(SHA_512, credential(SHA_512, "secret"), "secret")
    assert not has_password(SHA_512, credential(SHA_512, "secret"), "guess")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=user,r=nonce",  # channel binding, which is not offered
        b"n,a=root,n=user,r=nonce",  # to act as another user (CVE-2017-12610)
        b"n,,m=ext,n=user,r=nonce",
        b"n,,n=us=er,r=nonce",
        b"n,,n=user,r=",
        b"n,,n=user,r=non\x01ce",
        b"n,,n=user,r=" + b"x" * 513,
        b"n,,n=\xff,r=nonce",
        b"n,,n=user,n=root,r=nonce",
        b"n,,n=" + b"u" * (8 << 10) + b",r=nonce",
    ],
)
def test_a_malformed_first_message_is_refused(message):
    with pytest.raises(ValueError, match=r"message|name|nonce|utf-8|another user"):
        ScramServer(SHA_256, "nonce").parse_first(message)


def test_the_own_name_is_a_valid_authorization():
    server = ScramServer(SHA_256, "nonce")
    server.parse_first(b"n,a=us=3Der,n=us=3Der,r=nonce")
    assert server.user == "us=er"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"r=client-nonceserver-nonce", b"r=client-nonce"),  # a nonce that the server did not make (CVE-2024-56128)
        (b"r=client-nonceserver-nonce", b"r=client-nonceserver-nonce2"),
        (b"c=biws", b"c=eSws"),
        (b",p=", b",q="),
        (b",p=", b",p=A"),
        (b",p=", b",x=" + b"y" * (8 << 10) + b",p="),
    ],
)
def test_a_changed_final_message_is_refused(old, new):
    client, server = ScramClient(SHA_256, "user", "client-nonce"), ScramServer(SHA_256, "server-nonce")
    server.parse_first(client.first())
    challenge = client.parse_challenge(server.challenge(credential(SHA_256, "secret")))
    final = client.final(salted_password(SHA_256, "secret", challenge.salt, challenge.iterations))
    with pytest.raises(ScramError, match=r"nonce|proof|base64|list|limit is"):
        server.final(final.replace(old, new))
    server.final(final)


def test_a_recorded_login_cannot_be_replayed():
    client, server = ScramClient(SHA_256, "user", "client-nonce"), ScramServer(SHA_256, "server-nonce")
    server.parse_first(client.first())
    challenge = client.parse_challenge(server.challenge(credential(SHA_256, "secret")))
    final = client.final(salted_password(SHA_256, "secret", challenge.salt, challenge.iterations))
    again = ScramServer(SHA_256, "other-nonce")
    again.parse_first(client.first())
    again.challenge(credential(SHA_256, "secret"))
    with pytest.raises(ScramError, match="another nonce"):
        again.final(final)


@pytest.mark.parametrize(
    "message",
    [
        b"r=other,s=c2FsdA==,i=4096",
        b"r=mine,s=c2FsdA==,i=4096",
        b"r=mine2,s=c2FsdA==,i=4095",
        b"r=mine2,s=c2FsdA==,i=999999999",
        b"r=mine2,s=!,i=4096",
        b"r=mine2,s=c2FsdA==,i=x",
        b"e=other-error",
    ],
)
def test_a_client_refuses_a_bad_challenge(message):
    with pytest.raises(ScramError):
        ScramClient(SHA_256, "user", "mine").parse_challenge(message)


def test_a_client_refuses_a_server_that_does_not_know_the_credential():
    client = ScramClient(SHA_256, "user", "mine")
    client.parse_challenge(b"r=mine2,s=c2FsdA==,i=4096")
    client.final(salted_password(SHA_256, "secret", b"salt", 4096))
    with pytest.raises(ScramError, match="does not know"):
        client.check(b"v=AAAA")


def test_no_secret_is_shown():
    known = credential(SHA_256, "secret")
    assert repr(known) == "ScramCredential(iterations=4096)"
