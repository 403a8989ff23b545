"""Decides requests to describe and alter quotas of clients: pure, with Kafka's errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from ipaddress import ip_address
from typing import NamedTuple

from flowstone.cluster.decisions.authorizer import canonical_host
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.quota import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    QuotaEntity,
)
from flowstone.cluster.image.records import ClientQuotaChanged, MetadataRecord
from flowstone.errors import ApiError, ErrorCode

# Every broker has all quotas in memory.
QUOTA_ENTITIES_MAX = 20_000
NAME_CHARACTERS_MAX = 1_000
_CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_WHOLE_NUMBERS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)
VALUE_MAX = 2.0**63


class MatchType(IntEnum):
    """The ways in which a filter compares an entity's name, with the protocol's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaFilter(NamedTuple):
    entity_type: str
    match_type: int
    name: str | None


class QuotaAlteration(NamedTuple):
    """Changes of one entity's quotas, as a request names them; None removes a quota."""

    entity: Sequence[tuple[str, str | None]]
    changes: Mapping[str, float | None]


class QuotaResult(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_quotas(
    image: ClusterImage, alterations: Sequence[QuotaAlteration]
) -> tuple[list[MetadataRecord], list[QuotaResult]]:
    """Return the records for the valid changes, and the result of each change."""
    records: list[MetadataRecord] = []
    results = []
    new_entities: set[QuotaEntity] = set()
    for each in alterations:
        try:
            entity = _checked_entity(each.entity)
            _check_values(entity, each.changes)
            if entity not in image.quotas:
                new_entities.add(entity)
                if len(image.quotas) + len(new_entities) > QUOTA_ENTITIES_MAX:
                    raise ApiError(ErrorCode.POLICY_VIOLATION, f"At most {QUOTA_ENTITIES_MAX} entities have quotas.")
        except ApiError as error:
            results.append(QuotaResult(error.code, error.message))
            continue
        known = image.quotas.get(entity, {})
        changes = {key: value for key, value in each.changes.items() if known.get(key) != value}
        if changes:
            records.append(ClientQuotaChanged(entity, changes))
        results.append(QuotaResult())
    return records, results


def describe_quotas(
    image: ClusterImage, filters: Sequence[QuotaFilter], *, strict: bool
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
    """Yield the entities with the types and names of all filters, and their quotas.

    A strict filter yields no entities with further types. Without filters all entities match; if they are strict, none.
    Raises ApiError if a filter is invalid.
    """
    _check_filters(filters)
    for entity, values in image.quotas.items():
        names = dict(entity)
        if all(_matches(names, each) for each in filters) and (not strict or len(names) == len(filters)):
            yield entity, values


def _matches(names: Mapping[str, str | None], wanted: QuotaFilter) -> bool:
    if wanted.entity_type not in names:
        return False
    return wanted.match_type == MatchType.ANY or names[wanted.entity_type] == wanted.name


def _check_filters(filters: Sequence[QuotaFilter]) -> None:
    seen: set[str] = set()
    for each in filters:
        kind = each.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in seen:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}.")
        seen.add(kind)
        if each.match_type not in MatchType.__members__.values():
            raise _invalid(f"Unknown match type {each.match_type}")
        if (each.match_type == MatchType.EXACT) != (each.name is not None):
            needs = "a name" if each.match_type == MatchType.EXACT else "no name"
            raise _invalid(f"The match type {MatchType(each.match_type).name} needs {needs}.")
    if IP in seen and len(seen) > 1:
        raise _invalid("Invalid entity filter component combination: ip stands alone.")


def _checked_entity(pairs: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity. Raises ApiError if there is no such one."""
    if not pairs:
        raise _invalid("Invalid empty client quota entity.")
    names: dict[str, str | None] = {}
    for kind, name in pairs:
        if kind in names:
            raise _invalid(f"Client quota entity contains duplicate type {kind}.")
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name is not None and not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise _invalid(f"The name of a {kind} has 1 to {NAME_CHARACTERS_MAX} characters.")
        names[kind] = name
    if IP in names:
        if len(names) > 1:
            raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
        names[IP] = _checked_address(names[IP])
    return tuple(sorted(names.items()))


def _checked_address(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        ip_address(name)
    except ValueError:
        raise _invalid(f"{name} is not a valid IP address") from None
    return canonical_host(name)


def _check_values(entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    known = (CONNECTION_CREATION_RATE,) if entity[0][0] == IP else _CLIENT_KEYS
    for key, value in changes.items():
        if key not in known:
            raise _invalid(f"Invalid configuration key {key}")
        if value is None:
            continue
        if not math.isfinite(value) or value > VALUE_MAX:
            raise _invalid(f"Quota {key} is not a number that a quota can have: {value}")
        is_positive = value >= 0 if key == CONNECTION_CREATION_RATE else value > 0
        if not is_positive:
            raise _invalid(f"Quota {key} must be greater than 0")
        if key in _WHOLE_NUMBERS and value != math.floor(value):
            raise _invalid(f"Configuration {key} must be a Long value")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
