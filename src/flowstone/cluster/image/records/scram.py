"""Records about SCRAM credentials of users. No record has a password."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flowstone.authentication.scram import ScramCredential, ScramMechanism
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import Form, MetadataRecord, metadata_record, stored

BYTES = Form(bytes.hex, bytes.fromhex)
MECHANISM = Form(int, ScramMechanism)


def _write(credential: ScramCredential) -> list[str | int]:
    salt, stored_key, server_key, iterations = credential
    return [salt.hex(), stored_key.hex(), server_key.hex(), iterations]


def _read(value: list[Any]) -> ScramCredential:
    salt, stored_key, server_key, iterations = value
    return ScramCredential(bytes.fromhex(salt), bytes.fromhex(stored_key), bytes.fromhex(server_key), iterations)


CREDENTIAL = Form(_write, _read)


@metadata_record(levels=(2,))
class ScramCredentialChanged(MetadataRecord):
    """The credential of a user for a mechanism, instead of the one before."""

    user: str
    mechanism: ScramMechanism = stored(MECHANISM)
    credential: ScramCredential = stored(CREDENTIAL)

    def __repr__(self) -> str:
        return f"ScramCredentialChanged(user={self.user!r}, mechanism={self.mechanism.sasl_name})"

    def apply(self, draft: Draft) -> None:
        draft.copied("scram_credentials")[self.user, self.mechanism] = self.credential

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ScramCredentialChanged]:
        if after.scram_credentials is not before.scram_credentials:
            for key, credential in after.scram_credentials.items():
                if before.scram_credentials.get(key) != credential:
                    yield cls(*key, credential)


@metadata_record(levels=(2,))
class ScramCredentialRemoved(MetadataRecord):
    """A user has no credential for the mechanism any more."""

    user: str
    mechanism: ScramMechanism = stored(MECHANISM)

    def apply(self, draft: Draft) -> None:
        draft.copied("scram_credentials").pop((self.user, self.mechanism), None)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ScramCredentialRemoved]:
        if after.scram_credentials is not before.scram_credentials:
            for key in before.scram_credentials:
                if key not in after.scram_credentials:
                    yield cls(*key)


@metadata_record(levels=(2,))
class ScramSecretChosen(MetadataRecord):
    """The secret from which all brokers derive the salts of users who do not exist."""

    secret: bytes = stored(BYTES)

    def __repr__(self) -> str:
        return "ScramSecretChosen()"

    def apply(self, draft: Draft) -> None:
        draft.image = replace(draft.image, scram_secret=self.secret)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[ScramSecretChosen]:
        if after.scram_secret != before.scram_secret:
            yield cls(after.scram_secret)
