"""Decides whether the access rules let a principal do something, as Kafka's StandardAuthorizer does: pure.

A rule counts for a resource of its type if its name is the resource's, or a prefix of it, or `*`; for a principal that
it names, or for all (`User:*`); for a host that it names, or for all (`*`).

- A super user may do everything.
- Any rule that denies wins over all that allow.
- READ, WRITE, DELETE and ALTER, if allowed, include DESCRIBE; ALTER_CONFIGS includes DESCRIBE_CONFIGS. A denial
  includes nothing else. ALL covers every operation.
- A resource that no rule names at all is open to everybody only with `allow.everyone.if.no.acl.found`.

Cost: the rules of one resource, and one lookup for each different length of prefix. Callers cache the decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from flowstone.cluster.decisions.acl_operations import AclOperation
from flowstone.cluster.image.acl import ALL_OPERATIONS, ALLOW, ANY_PRINCIPAL, DENY, LITERAL, WILDCARD, Acl

_OPERATIONS_WITH_DESCRIBE = (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
# The operations whose rules allow an operation, besides its own and ALL.
IMPLIED_BY: dict[int, tuple[AclOperation, ...]] = {
    AclOperation.DESCRIBE: _OPERATIONS_WITH_DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
ALLOWING: dict[int, frozenset[int]] = {
    operation: frozenset((operation, ALL_OPERATIONS, *IMPLIED_BY.get(operation, ()))) for operation in AclOperation
}
# A name that no rule is made for, by which a principal that may do everything is recognized.
_NO_NAME = "\0"

_Rules = dict[Acl, None]


class Authorizer:
    """The access rules, indexed by the resources that they name."""

    def __init__(self, super_users: Iterable[str] = (), *, allows_everyone: bool = False) -> None:
        """Create an authorizer without rules.

        `allows_everyone` is `allow.everyone.if.no.acl.found`.
        """
        self._super_users, self._allows_everyone = frozenset(super_users), allows_everyone
        self._literal: defaultdict[tuple[int, str], _Rules] = defaultdict(dict)
        self._prefixed: defaultdict[tuple[int, str], _Rules] = defaultdict(dict)
        # The lengths of the prefixes of each resource type, with the number of different prefixes of each length.
        self._lengths: defaultdict[int, dict[int, int]] = defaultdict(dict)
        # Raised with every change, so that cached decisions are dropped.
        self.version = 0

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        """Apply a change of the rules; one that is known already, or unknown, is ignored."""
        self.version += 1
        for rule in removed:
            self._remove(rule)
        for rule in added:
            self._add(rule)

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Return whether the principal may do the operation with the resource."""
        if principal in self._super_users:
            return True
        allowing = ALLOWING[operation]
        is_named = is_allowed = False
        for rules in self._rules_for(resource_type, name):
            for rule in rules:
                is_named = True
                if not _concerns(rule, principal, host):
                    continue
                if rule.permission == DENY:
                    if rule.operation in (operation, ALL_OPERATIONS):
                        return False
                elif rule.permission == ALLOW and rule.operation in allowing:
                    is_allowed = True
        return is_allowed or (self._allows_everyone and not is_named)

    def allows_on_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Return whether there may be a resource of the type with which the principal may do the operation.

        Only rules for the operation itself, or for ALL, count, as in Kafka.
        """
        if self.allows(principal, host, operation, resource_type, _NO_NAME):
            return True
        denied_names, denied_prefixes = set(), set()
        allowed: list[Acl] = []
        for rule in self._rules_of_type(resource_type):
            if rule.operation not in (operation, ALL_OPERATIONS) or not _concerns(rule, principal, host):
                continue
            if rule.permission == ALLOW:
                allowed.append(rule)
            elif rule.pattern_type != LITERAL:
                denied_prefixes.add(rule.resource_name)
            elif rule.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(rule.resource_name)
        for rule in allowed:
            name = rule.resource_name
            if rule.pattern_type == LITERAL and name == WILDCARD:
                return True
            if rule.pattern_type == LITERAL and name in denied_names:
                continue
            if not any(name[:length] in denied_prefixes for length in range(1, len(name) + 1)):
                return True
        return False

    def _rules_for(self, resource_type: int, name: str) -> Iterator[_Rules]:
        """Yield the groups of rules that name the resource."""
        for key in ((resource_type, name), (resource_type, WILDCARD)) if name != WILDCARD else ((resource_type, name),):
            found = self._literal.get(key)
            if found is not None:
                yield found
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                found = self._prefixed.get((resource_type, name[:length]))
                if found is not None:
                    yield found

    def _rules_of_type(self, resource_type: int) -> Iterator[Acl]:
        for index in (self._literal, self._prefixed):
            for (kind, _), rules in index.items():
                if kind == resource_type:
                    yield from rules

    def _add(self, rule: Acl) -> None:
        key = (rule.resource_type, rule.resource_name)
        if rule.pattern_type == LITERAL:
            self._literal[key][rule] = None
            return
        if key not in self._prefixed:
            lengths, length = self._lengths[rule.resource_type], len(rule.resource_name)
            lengths[length] = lengths.get(length, 0) + 1
        self._prefixed[key][rule] = None

    def _remove(self, rule: Acl) -> None:
        key = (rule.resource_type, rule.resource_name)
        index = self._literal if rule.pattern_type == LITERAL else self._prefixed
        rules = index.get(key)
        if rules is None:
            return
        rules.pop(rule, None)
        if rules:
            return
        del index[key]
        if rule.pattern_type != LITERAL:
            lengths, length = self._lengths[rule.resource_type], len(rule.resource_name)
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]


def _concerns(rule: Acl, principal: str, host: str) -> bool:
    return rule.principal in (principal, ANY_PRINCIPAL) and rule.host in (host, WILDCARD)


def canonical_host(host: str) -> str:
    """Return the address in the form in which hosts are compared: an IPv4 client of an IPv6 socket has its IPv4
    address. Other texts are returned unchanged.
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)
