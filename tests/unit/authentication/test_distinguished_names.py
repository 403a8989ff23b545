from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flowstone.authentication.distinguished_names import name_of, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(name: x509.Name) -> bytes:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(x509.Name([])).public_key(KEY.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


# The texts are those of Java's X500Principal.getName(RFC2253).
@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ([(NameOID.COMMON_NAME, "alice")], "CN=alice"),
        (
            [(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Ex, Ltd"), (NameOID.COMMON_NAME, "b")],
            "CN=b,O=Ex\\, Ltd,C=DE",
        ),
        ([(NameOID.COMMON_NAME, " #x+y ")], "CN=\\ #x\\+y\\ "),
        ([(NameOID.COMMON_NAME, "#x")], "CN=\\#x"),
        ([(NameOID.EMAIL_ADDRESS, "a@b")], "1.2.840.113549.1.9.1=#1603614062"),
        ([(NameOID.USER_ID, "u"), (NameOID.DOMAIN_COMPONENT, "d")], "DC=d,UID=u"),
        ([(NameOID.COMMON_NAME, "\u00fc")], "CN=\u00fc"),
    ],
)
def test_a_subject_is_written_as_in_java(attributes, text):
    name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    assert subject_of(certificate(name)) == text


def test_several_attributes_in_one_set_are_joined():
    pair = [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    text = subject_of(certificate(x509.Name([x509.RelativeDistinguishedName(pair)])))
    assert sorted(text.split("+")) == ["CN=a", "UID=b"]


def test_malformed_bytes_raise_value_error():
    good = certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alice")]))
    for size in range(0, 120, 7):
        with pytest.raises(ValueError, match=r"end inside|empty|subject|length|malformed"):
            subject_of(good[:size])
    with pytest.raises(ValueError, match="sets"):
        name_of(b"\x30\x00")
