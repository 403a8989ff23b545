"""Decides changes of users' SCRAM credentials: pure, with Kafka's errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flowstone.authentication.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import (
    MetadataRecord,
    ScramCredentialChanged,
    ScramCredentialRemoved,
    ScramSecretChosen,
)
from flowstone.errors import ApiError, ErrorCode

SECRET_BYTES = 32
USER_CHARACTERS_MAX = 255
SALT_BYTES_MAX = 1024


class Deletion(NamedTuple):
    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """A new credential, as Kafka's requests have it: the client has derived the salted password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


# The outcome for each user: None if it was done.
Outcomes = dict[str, ApiError | None]


def alter_credentials(
    image: ClusterImage,
    deletions: Sequence[Deletion],
    upsertions: Sequence[Upsertion],
    new_secret: Callable[[int], bytes],
) -> tuple[list[MetadataRecord], Outcomes]:
    """Return the records and the outcome for each user. A user with one bad change has none of them made."""
    changes: Sequence[Deletion | Upsertion] = [*deletions, *upsertions]
    counts = Counter((each.user, each.mechanism) for each in changes)
    outcomes: Outcomes = {each.user: None for each in changes}
    for change in changes:
        if outcomes[change.user] is None:
            outcomes[change.user] = _reason_refused(image, change, counts[change.user, change.mechanism])
    records: list[MetadataRecord] = []
    for change in changes:
        if outcomes[change.user] is not None:
            continue
        mechanism = ScramMechanism(change.mechanism)
        if isinstance(change, Deletion):
            records.append(ScramCredentialRemoved(change.user, mechanism))
        else:
            credential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
            records.append(ScramCredentialChanged(change.user, mechanism, credential))
    return [*_secret(image, records, new_secret), *records], outcomes


def import_credentials(
    image: ClusterImage,
    found: Mapping[tuple[str, ScramMechanism], ScramCredential],
    new_secret: Callable[[int], bytes],
) -> tuple[list[MetadataRecord], list[str]]:
    """Return the records that store the credentials of users who have none yet, and the names of these users."""
    known = {user for user, _ in image.scram_credentials}
    missing = {key: credential for key, credential in found.items() if key[0] not in known}
    records: list[MetadataRecord] = [ScramCredentialChanged(*key, credential) for key, credential in missing.items()]
    return [*_secret(image, records, new_secret), *records], sorted({user for user, _ in missing})


def _secret(
    image: ClusterImage, records: Sequence[MetadataRecord], new_secret: Callable[[int], bytes]
) -> list[MetadataRecord]:
    """Return the record of the cluster's secret, which is chosen with its first credential."""
    return [ScramSecretChosen(new_secret(SECRET_BYTES))] if records and not image.scram_secret else []


def _reason_refused(image: ClusterImage, change: Deletion | Upsertion, count: int) -> ApiError | None:
    if not change.user:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.user) > USER_CHARACTERS_MAX:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username is longer than {USER_CHARACTERS_MAX} characters")
    if change.mechanism not in ScramMechanism.__members__.values():
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if count > 1:
        message = "A user credential cannot be altered twice in the same request"
        return ApiError(ErrorCode.DUPLICATE_RESOURCE, message)
    if isinstance(change, Deletion):
        if (change.user, ScramMechanism(change.mechanism)) not in image.scram_credentials:
            message = "Attempt to delete a user credential that does not exist"
            return ApiError(ErrorCode.RESOURCE_NOT_FOUND, message)
        return None
    return _reason_unacceptable(change)


def _reason_unacceptable(change: Upsertion) -> ApiError | None:
    code = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if change.iterations < ITERATIONS_MIN:
        return ApiError(code, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        return ApiError(code, "Too many iterations")
    if not 0 < len(change.salt) <= SALT_BYTES_MAX:
        return ApiError(code, f"The salt must have 1 to {SALT_BYTES_MAX} bytes")
    if len(change.salted_password) != ScramMechanism(change.mechanism).key_bytes:
        return ApiError(code, "The salted password has not the length of the mechanism's keys")
    return None
