"""The record about delegation tokens. It has no secret: passwords of tokens follow from a setting of the brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import Form, MetadataRecord, metadata_record, stored

# Tokens in one record of a snapshot.
TOKENS_AT_ONCE = 500


def _write(tokens: tuple[DelegationToken, ...]) -> list[list[Any]]:
    return [list(token) for token in tokens]


def _read(values: list[list[Any]]) -> tuple[DelegationToken, ...]:
    return tuple(DelegationToken._make((*value[:3], tuple(value[3]), *value[4:])) for value in values)


@metadata_record(levels=(2,))
class DelegationTokensChanged(MetadataRecord):
    """Tokens that are new or have another expiry, and the ids of those that do not exist any more."""

    tokens: tuple[DelegationToken, ...] = stored(Form(_write, _read))
    removed: tuple[str, ...] = stored(Form(list, tuple))

    def apply(self, draft: Draft) -> None:
        tokens = draft.copied("delegation_tokens")
        tokens.update((token.token_id, token) for token in self.tokens)
        for token_id in self.removed:
            tokens.pop(token_id, None)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[DelegationTokensChanged]:
        old, new = before.delegation_tokens, after.delegation_tokens
        if new is old:
            return
        changed = [token for token_id, token in new.items() if old.get(token_id) != token]
        for at in range(0, len(changed), TOKENS_AT_ONCE):
            yield cls(tuple(changed[at : at + TOKENS_AT_ONCE]), ())
        removed = tuple(token_id for token_id in old if token_id not in new)
        for at in range(0, len(removed), TOKENS_AT_ONCE):
            yield cls((), removed[at : at + TOKENS_AT_ONCE])
