"""Records about access rules (ACLs)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flowstone.cluster.image.acl import Acl
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.records.declaration import Form, MetadataRecord, metadata_record, stored

# Rules in one record of a snapshot.
RULES_AT_ONCE = 1_000


def _read(rules: Iterable[list[Any]]) -> tuple[Acl, ...]:
    return tuple(Acl(*rule) for rule in rules)


RULES = Form(lambda rules: [list(rule) for rule in rules], _read)


@metadata_record(levels=(2,))
class AclsCreated(MetadataRecord):
    """New access rules. One that exists already is not added twice."""

    rules: tuple[Acl, ...] = stored(RULES)

    def apply(self, draft: Draft) -> None:
        draft.copied("acls").update(dict.fromkeys(self.rules))

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[AclsCreated]:
        if after.acls is not before.acls:
            yield from (cls(some) for some in _parts(after.acls, before.acls))


@metadata_record(levels=(2,))
class AclsDeleted(MetadataRecord):
    """Access rules that apply no longer."""

    rules: tuple[Acl, ...] = stored(RULES)

    def apply(self, draft: Draft) -> None:
        acls = draft.copied("acls")
        for rule in self.rules:
            acls.pop(rule, None)

    @classmethod
    def difference(cls, before: ClusterImage, after: ClusterImage) -> Iterator[AclsDeleted]:
        if after.acls is not before.acls:
            yield from (cls(some) for some in _parts(before.acls, after.acls))


def _parts(rules: Iterable[Acl], known: Iterable[Acl]) -> Iterator[tuple[Acl, ...]]:
    """Yield the rules that are not known yet, some at a time."""
    left = [rule for rule in rules if rule not in known]
    return (tuple(left[at : at + RULES_AT_ONCE]) for at in range(0, len(left), RULES_AT_ONCE))
