from __future__ import annotations

from itertools import starmap

import pytest

from flowstone.authentication.scram import ScramMechanism, has_password, salted_password
from flowstone.cluster.decisions.scram_changes import Deletion, Upsertion, alter_credentials, import_credentials
from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.replay import apply, snapshot
from flowstone.errors import ErrorCode
from tests.support.security.secured import credential

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def upsertion(
    user: str = "alice", mechanism: int = SHA_512, password: str = "secret", iterations: int = 4096
) -> Upsertion:
    known = mechanism if mechanism in ScramMechanism.__members__.values() else SHA_256
    salted = salted_password(ScramMechanism(known), password, b"salt", iterations)
    return Upsertion(user, mechanism, iterations, b"salt", salted)


def altered(image: ClusterImage, *changes: Deletion | Upsertion) -> tuple[ClusterImage, dict[str, int]]:
    deletions = [each for each in changes if isinstance(each, Deletion)]
    upsertions = [each for each in changes if isinstance(each, Upsertion)]
    records, outcomes = alter_credentials(image, deletions, upsertions, bytes)
    return apply(image, records), {user: error.code if error else 0 for user, error in outcomes.items()}


def test_a_credential_is_stored_replaced_and_deleted():
    image, outcomes = altered(EMPTY_IMAGE, upsertion(), upsertion("bob", SHA_256))
    assert outcomes == {"alice": 0, "bob": 0}
    assert len(image.scram_secret) == 32
    image, _ = altered(image, upsertion(password="new", iterations=8192))
    known = image.scram_credentials["alice", SHA_512]
    assert has_password(SHA_512, known, "new")
    assert not has_password(SHA_512, known, "secret")
    image, outcomes = altered(image, Deletion("alice", SHA_512))
    assert (outcomes, set(image.scram_credentials)) == ({"alice": 0}, {("bob", SHA_256)})


def test_a_snapshot_has_the_credentials():
    image, _ = altered(EMPTY_IMAGE, upsertion(), upsertion("bob", SHA_256))
    assert apply(EMPTY_IMAGE, snapshot(image)).scram_credentials == image.scram_credentials
    assert apply(EMPTY_IMAGE, snapshot(image)).scram_secret == image.scram_secret
    assert "stored_key" not in repr(image)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion()._replace(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion()._replace(salted_password=b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Deletion("alice", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (Deletion("alice", SHA_512), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_a_bad_change_is_refused_with_kafkas_error(change, code):
    image, outcomes = altered(EMPTY_IMAGE, change, upsertion("bob"))
    assert outcomes == {change.user: code, "bob": 0}
    assert set(image.scram_credentials) == {("bob", SHA_512)}


def test_a_user_with_one_bad_change_keeps_everything():
    image, outcomes = altered(EMPTY_IMAGE, upsertion(), upsertion(mechanism=SHA_256, iterations=1))
    assert (dict(image.scram_credentials), outcomes["alice"]) == ({}, ErrorCode.UNACCEPTABLE_CREDENTIAL)
    image, outcomes = altered(EMPTY_IMAGE, upsertion(), upsertion())
    assert (dict(image.scram_credentials), outcomes["alice"]) == ({}, ErrorCode.DUPLICATE_RESOURCE)


def test_only_unknown_users_are_imported():
    image, _ = altered(EMPTY_IMAGE, upsertion("admin", SHA_256))
    found = {("admin", SHA_512): credential(SHA_512), ("new", SHA_512): credential(SHA_512)}
    records, users = import_credentials(image, found, bytes)
    assert users == ["new"]
    assert set(apply(image, records).scram_credentials) == {("admin", SHA_256), ("new", SHA_512)}
    assert list(starmap(import_credentials, [(apply(image, records), found, bytes)])) == [([], [])]
