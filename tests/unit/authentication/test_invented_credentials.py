"""Credentials of users who do not exist: nobody can tell them from stored ones."""

from __future__ import annotations

from collections import Counter

import pytest

from flowstone.authentication.invented_credentials import (
    TOKEN_FORM,
    Form,
    InventedCredentials,
    form_of,
    invented_credential,
)
from flowstone.authentication.scram import (
    ScramCredential,
    ScramError,
    ScramMechanism,
    credential_of,
    salt_text,
    salted_password,
)
from tests.unit.authentication.test_scram import logged_in

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SECRET = b"secret of the cluster"


def stored(salt: bytes, iterations: int, mechanism: ScramMechanism = SHA_512) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, "x", salt, 4096), salt, iterations)


def test_an_unknown_user_gets_the_same_salt_each_time_and_never_gets_in():
    known = invented_credential(SHA_256, "nobody", SECRET, Form())
    assert known == invented_credential(SHA_256, "nobody", SECRET, Form())
    assert known.salt != invented_credential(SHA_256, "nobody", b"another secret", Form()).salt
    assert known.salt != invented_credential(SHA_512, "nobody", SECRET, Form()).salt
    with pytest.raises(ScramError):
        logged_in(SHA_256, "nobody", "", known)


@pytest.mark.parametrize(
    "like",
    [
        stored(salt_text(bytes(range(25))), 8192),
        stored(salt_text(bytes(range(25)))[:24], 16384),
        stored(bytes(64), 4096),
    ],
)
def test_an_unknown_user_looks_like_those_that_are_stored(like):
    invented = InventedCredentials(lambda: {("alice", SHA_512): like}, lambda: SECRET)
    assert form_of(invented.of_user(SHA_512, "nobody")) == form_of(like)
    assert form_of(invented.of_user(SHA_256, "nobody")) == Form()  # there is no user to look like
    assert form_of(invented.of_token(SHA_512, "unknown")) == TOKEN_FORM


def test_forms_are_as_frequent_as_stored_ones_and_a_new_user_changes_few():
    old, new = stored(salt_text(bytes(range(25))), 4096), stored(bytes(64), 8192)
    users = {(f"user{number}", SHA_512): old if number % 10 < 3 else new for number in range(100)}
    known = users
    invented = InventedCredentials(lambda: known, lambda: SECRET)
    names = [f"name{number}" for number in range(2_000)]
    before = {name: form_of(invented.of_user(SHA_512, name)) for name in names}
    counts = Counter(before.values())
    assert 0.25 < counts[form_of(old)] / len(names) < 0.35
    assert counts[form_of(old)] + counts[form_of(new)] == len(names)
    known = {**users, ("another", SHA_512): new}
    after = {name: form_of(invented.of_user(SHA_512, name)) for name in names}
    assert sum(before[name] != after[name] for name in names) < len(names) / 50
