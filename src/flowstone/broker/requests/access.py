"""Decisions about what a session may do: `Access`, the authorizer with a cache.

Without an authorizer there is no `Access` (`services.access` is None). The authorizer follows the metadata: a rule
counts for the next request after its record is committed.

Decisions are cached by principal and host, since most sessions of a client ask the same again and again. A change of
the rules drops all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from flowstone.broker.requests.permissions import CLUSTER_DESCRIBE, Permission
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.decisions.acl_operations import (
    ALL_CLUSTER_OPERATIONS,
    CLUSTER_OPERATIONS,
    AclOperation,
    ResourceType,
)
from flowstone.cluster.decisions.authorizer import Authorizer, canonical_host
from flowstone.cluster.image.records import AclsCreated, AclsDeleted, MetadataRecord
from flowstone.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from flowstone.cluster.image.cluster_image import ClusterImage
    from flowstone.cluster.metadata import Metadata
    from flowstone.config import BrokerConfig

# Cached decisions of all principals together; a decision takes about 200 bytes.
DECISIONS_MAX = 100_000
# Longer names, which clients may invent, are not cached.
CACHED_NAME_CHARACTERS_MAX = 256

AUTHORIZATION_ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}


class Decisions(dict[Permission, dict[str, bool]]):
    """The cached decisions about one principal at one host: by permission, and by name of the resource."""

    __slots__ = ("checked_members", "host", "is_stale", "principal")

    def __init__(self, principal: str, host: str) -> None:
        super().__init__()
        self.principal, self.host = principal, host
        # Members of share groups whose sessions were checked, by group and member id.
        self.checked_members: set[tuple[str, str]] = set()
        self.is_stale = False  # whether the rules have changed since

    def __missing__(self, permission: Permission) -> dict[str, bool]:
        by_name = self[permission] = {}
        return by_name


class Access:
    """The authorizer's decisions about sessions, with a cache per session."""

    def __init__(self, authorizer: Authorizer, on_denied: Callable[[ClientSession, Permission, str], None]) -> None:
        """Use the authorizer's rules; `on_denied` is called for each denial that is sent to a client."""
        self._authorizer, self._on_denied = authorizer, on_denied
        self._caches: dict[tuple[str, str], Decisions] = {}
        self._decision_count = 0

    def may(self, session: ClientSession, permission: Permission, name: str = CLUSTER_NAME) -> bool:
        """Return whether the session has the permission for the resource of this name, without an audit line."""
        decisions = session.decisions
        if decisions is None or decisions.is_stale:
            decisions = self.decisions_of(session)
        allowed = decisions[permission].get(name)
        return self._decide(decisions, permission, name) if allowed is None else allowed

    def check(self, session: ClientSession, permission: Permission, name: str = CLUSTER_NAME) -> bool:
        """Return what `may` does, with an audit line if the session has not the permission."""
        if self.may(session, permission, name):
            return True
        self._on_denied(session, permission, name)
        return False

    def deny(self, session: ClientSession, permission: Permission, name: str = CLUSTER_NAME) -> None:
        """Write the audit line of a denial that was decided without a rule."""
        self._on_denied(session, permission, name)

    def may_on_any(self, session: ClientSession, permission: Permission) -> bool:
        """Return whether there may be a resource for which the session has the permission."""
        decisions = self.decisions_of(session)
        return self._authorizer.allows_on_any(
            decisions.principal, decisions.host, permission.operation, permission.resource_type
        )

    def operations(
        self, session: ClientSession, resource_type: ResourceType, name: str, operations: Iterable[AclOperation]
    ) -> int:
        """Return those of the operations that the session may do with the resource, as bits."""
        decisions, allows = self.decisions_of(session), self._authorizer.allows
        return sum(
            1 << each for each in operations if allows(decisions.principal, decisions.host, each, resource_type, name)
        )

    def follow(self, _before: ClusterImage, _after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        """Apply changes of the rules that were committed."""
        for record in records:
            if isinstance(record, AclsCreated):
                self._authorizer.change(added=record.rules, removed=())
            elif isinstance(record, AclsDeleted):
                self._authorizer.change(added=(), removed=record.rules)
            else:
                continue
            self._forget()

    def _decide(self, decisions: Decisions, permission: Permission, name: str) -> bool:
        allowed = self._authorizer.allows(
            decisions.principal, decisions.host, permission.operation, permission.resource_type, name
        )
        if len(name) <= CACHED_NAME_CHARACTERS_MAX:
            self._decision_count += 1
            if self._decision_count > DECISIONS_MAX:
                self._forget()
            else:
                decisions[permission][name] = allowed
        return allowed

    def decisions_of(self, session: ClientSession) -> Decisions:
        """Return the cache of the session's principal and host, which the session keeps until the rules change."""
        decisions = session.decisions
        if decisions is not None and not decisions.is_stale:
            return decisions
        key = principal, host = str(session.principal), canonical_host(session.host)
        decisions = self._caches.get(key)
        if decisions is None:
            self._decision_count += 1
            if self._decision_count > DECISIONS_MAX:
                self._forget()
            decisions = self._caches[key] = Decisions(principal, host)
        session.decisions = decisions
        return decisions

    def _forget(self) -> None:
        """Drop all cached decisions; sessions notice that theirs are stale."""
        for decisions in self._caches.values():
            decisions.is_stale = True
        self._caches, self._decision_count = {}, 0


def open_access(
    config: BrokerConfig, metadata: Metadata, on_denied: Callable[[ClientSession, Permission, str], None]
) -> Access | None:
    """Return the access that the settings configure, with the rules of the metadata; None without an authorizer."""
    if not config.authorizer_class_name:
        return None
    authorizer = Authorizer(
        parse_super_users(config.super_users), allows_everyone=config.allow_everyone_if_no_acl_found
    )
    authorizer.change(added=metadata.image.acls, removed=())
    access = Access(authorizer, on_denied)
    metadata.on_change(access.follow)
    return access


def parse_super_users(text: str) -> list[str]:
    """Return the principals that `super.users` names. Raises ConfigError if one is not TYPE:NAME."""
    principals = [each.strip() for each in text.split(";") if each.strip()]
    for each in principals:
        kind, _, name = each.partition(":")
        if not (kind and name):
            raise ConfigError(
                f"super.users: {each!r} is not TYPE:NAME, such as User:admin; separate principals by semicolons"
            )
    return principals


def operations_of_cluster(access: Access | None, session: ClientSession) -> int:
    """Return what the session may do with the cluster, as bits: nothing if it may not describe it."""
    if access is None:
        return ALL_CLUSTER_OPERATIONS
    if not access.may(session, CLUSTER_DESCRIBE):
        return 0
    return access.operations(session, ResourceType.CLUSTER, CLUSTER_NAME, CLUSTER_OPERATIONS)
