from __future__ import annotations

import hashlib
import hmac

from flowstone.authentication.delegation_tokens import DelegationToken, TokenSecret, password_of
from flowstone.authentication.scram import ScramMechanism, has_password


def test_a_token_is_valid_until_both_of_its_times():
    token = DelegationToken("t", "User:alice", "User:bob", (), 0, 10, 20)
    assert (token.is_valid(10), token.is_valid(11)) == (True, False)
    assert token._replace(max_ms=30).is_valid(21) is False
    assert token.user == "alice"
    assert (token.may_renew("User:bob"), token.is_owned_or_renewed_by("User:bob")) == (False, True)


def test_the_password_is_the_hmac_of_the_id_as_in_kafka():
    secret = TokenSecret("shared")
    assert secret.hmac("an-id") == hmac.new(b"shared", b"an-id", hashlib.sha512).digest()
    assert len(password_of(secret.hmac("an-id"))) == 88
    for mechanism in ScramMechanism:
        credential = secret.credential(mechanism, "an-id")
        assert credential == TokenSecret("shared").credential(mechanism, "an-id")
        assert has_password(mechanism, credential, password_of(secret.hmac("an-id")))
        assert not has_password(mechanism, credential, password_of(TokenSecret("other").hmac("an-id")))
    assert "shared" not in repr(secret)
