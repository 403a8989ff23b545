"""Decides requests to list, create and delete access rules: pure, with Kafka's errors.

A filter matches rules by each of its parts; an empty part matches all. The pattern types of filters: LITERAL and
PREFIXED compare the names, ANY takes every pattern of that name, MATCH takes every rule that names a resource of that
name, by literal name, prefix or `*`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.decisions.authorizer import canonical_host
from flowstone.cluster.image.acl import (
    ALL_OPERATIONS,
    ALLOW,
    ANY_OPERATION,
    ANY_PATTERN,
    ANY_PERMISSION,
    ANY_RESOURCE,
    DENY,
    LITERAL,
    MATCH_PATTERN,
    PREFIXED,
    WILDCARD,
    Acl,
)
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import AclsCreated, AclsDeleted, MetadataRecord
from flowstone.cluster.image.records.acls import RULES_AT_ONCE
from flowstone.errors import ApiError, ErrorCode

CLUSTER_NAME = "kafka-cluster"
# Every broker has all rules in memory.
ACLS_MAX = 100_000
# The longest text of one part of a rule; topic names have at most 249 characters, group names and principals may be
# longer.
PART_CHARACTERS_MAX = 1_000

_OPERATIONS = frozenset({ALL_OPERATIONS, *map(int, AclOperation)})
_FILTER_OPERATIONS = frozenset({ANY_OPERATION, *_OPERATIONS})
_RESOURCES = frozenset(int(each) for each in ResourceType)
_FILTER_RESOURCES = frozenset({ANY_RESOURCE, *_RESOURCES})


class AclFilter(NamedTuple):
    resource_type: int = ANY_RESOURCE
    resource_name: str | None = None
    pattern_type: int = ANY_PATTERN
    principal: str | None = None
    host: str | None = None
    operation: int = ANY_OPERATION
    permission: int = ANY_PERMISSION

    def matches(self, rule: Acl) -> bool:
        return (
            self.resource_type in (ANY_RESOURCE, rule.resource_type)
            and self._names(rule)
            and self.principal in (None, rule.principal)
            and (self.host is None or canonical_host(self.host) == rule.host)
            and self.operation in (ANY_OPERATION, rule.operation)
            and self.permission in (ANY_PERMISSION, rule.permission)
        )

    def _names(self, rule: Acl) -> bool:
        name, pattern = self.resource_name, self.pattern_type
        if pattern in (LITERAL, PREFIXED) and pattern != rule.pattern_type:
            return False
        if name is None or name == rule.resource_name:
            return True
        if pattern != MATCH_PATTERN:
            return False
        if rule.pattern_type == LITERAL:
            return rule.resource_name == WILDCARD
        return name.startswith(rule.resource_name)


class AclResult(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class DeletionResult(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    deleted: Sequence[Acl] = ()


def check_filter(wanted: AclFilter) -> None:
    """Raise ApiError if a part of the filter is not known."""
    unknown = _unknown_part(wanted.resource_type in _FILTER_RESOURCES, wanted.operation in _FILTER_OPERATIONS)
    if wanted.pattern_type not in (ANY_PATTERN, MATCH_PATTERN, LITERAL, PREFIXED):
        unknown = unknown or "PatternType"
    if wanted.permission not in (ANY_PERMISSION, DENY, ALLOW):
        unknown = unknown or "PermissionType"
    if unknown:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Filter contains an unknown {unknown}.")


def create_acls(image: ClusterImage, wanted: Sequence[Acl]) -> tuple[list[MetadataRecord], list[AclResult]]:
    """Return the records that add these rules, and the result for each; invalid ones keep no others from being added.

    A rule that exists already is no error.
    """
    results, added = [], dict[Acl, None]()
    for each in wanted:
        rule = each._replace(host=canonical_host(each.host))
        reason = _reason_invalid(rule)
        if reason is not None:
            results.append(AclResult(ErrorCode.INVALID_REQUEST, reason))
            continue
        if rule not in image.acls and rule not in added:
            if len(image.acls) + len(added) >= ACLS_MAX:
                results.append(AclResult(ErrorCode.POLICY_VIOLATION, f"There are {ACLS_MAX} ACLs, the most allowed."))
                continue
            added[rule] = None
        results.append(AclResult())
    return [AclsCreated(some) for some in _parts(added)], results


def find_rules(rules: Iterable[Acl], filters: Sequence[AclFilter]) -> Generator[None, None, list[DeletionResult]]:
    """Return the rules that each filter matches, in steps for `time_slices.run_in_slices`.

    A rule that several filters match is with the first of them.
    """
    by_name: defaultdict[str, list[Acl]] = defaultdict(list)
    for some in _some(rules):
        for rule in some:
            by_name[rule.resource_name].append(rule)
        yield
    results, found = [], dict[Acl, None]()
    for wanted in filters:
        try:
            check_filter(wanted)
        except ApiError as error:
            results.append(DeletionResult(error.code, error.message))
            continue
        is_named = wanted.resource_name is not None and wanted.pattern_type != MATCH_PATTERN
        candidates = by_name.get(wanted.resource_name or "", ()) if is_named else rules
        matching: list[Acl] = []
        for some in _some(candidates):
            matching += [rule for rule in some if wanted.matches(rule) and rule not in found]
            yield
        found.update(dict.fromkeys(matching))
        results.append(DeletionResult(deleted=matching))
        yield
    return results


def delete_rules(image: ClusterImage, rules: Sequence[Acl]) -> tuple[list[MetadataRecord], list[bool]]:
    """Return the records that remove these rules, and for each rule whether it still exists."""
    exist = [rule in image.acls for rule in rules]
    removed = tuple(rule for rule, exists in zip(rules, exist, strict=True) if exists)
    return [AclsDeleted(some) for some in _parts(removed)], exist


def _some(rules: Iterable[Acl]) -> Iterator[list[Acl]]:
    """Yield the rules in parts that are looked at in less than a time slice of the event loop."""
    iterator = iter(rules)
    while some := list(islice(iterator, RULES_AT_ONCE)):
        yield some


def _parts(rules: Iterable[Acl]) -> Iterator[tuple[Acl, ...]]:
    left = tuple(rules)
    return (left[at : at + RULES_AT_ONCE] for at in range(0, len(left), RULES_AT_ONCE))


def _reason_invalid(rule: Acl) -> str | None:
    """Return why the rule cannot be stored, or None."""
    unknown = _unknown_part(rule.resource_type in _RESOURCES, rule.operation in _OPERATIONS)
    if unknown:
        return f"The {unknown} is not one that a rule may have."
    if rule.pattern_type not in (LITERAL, PREFIXED):
        return "The pattern type of a rule is LITERAL or PREFIXED."
    if rule.permission not in (DENY, ALLOW):
        return "The permission type of a rule is ALLOW or DENY."
    kind, colon, name = rule.principal.partition(":")
    if not (kind and colon and name):
        return f"The principal must be TYPE:NAME, such as User:alice, not {rule.principal!r}."
    if not rule.host:
        return "The host is empty: * stands for all."
    if not rule.resource_name:
        return "The resource name is empty: * stands for all."
    if rule.resource_type == ResourceType.CLUSTER and rule.resource_name not in (CLUSTER_NAME, WILDCARD):
        return f"The name of the cluster in rules is {CLUSTER_NAME}, not {rule.resource_name!r}."
    if max(map(len, (rule.principal, rule.host, rule.resource_name))) > PART_CHARACTERS_MAX:
        return f"A principal, host or resource name has at most {PART_CHARACTERS_MAX} characters."
    return None


def _unknown_part(is_resource_known: bool, is_operation_known: bool) -> str:
    if not is_resource_known:
        return "ResourceType"
    return "" if is_operation_known else "Operation"
