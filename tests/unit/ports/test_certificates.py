from __future__ import annotations

from cryptography import x509

from flowstone.ports.certificates import Authority
from tests.support.security.secured import authority


def test_an_authority_issues_certificates_for_hosts():
    issued = authority().issue("broker", ["localhost", "127.0.0.1", "::1"])
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority().certificate.encode()))
    assert "PRIVATE" not in repr(issued)


def test_an_authority_is_loaded_from_its_key():
    again = Authority.load(authority().certified)
    certificate = x509.load_pem_x509_certificate(again.issue("x").certificate.encode())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority().certificate.encode()))
