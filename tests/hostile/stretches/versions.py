"""Cases for the versions of APIs that no case names, and what is not searched at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.wire.apis import APIS
from tests.hostile.worst_case import Case
from tests.support.wire_client import api_key

# The quick search has a part of the elements in a version that another case stands for.
QUICK_PART = 4


def covered(cases: Sequence[Case]) -> set[tuple[str, int]]:
    """The APIs and versions in which requests are sent."""
    return {(APIS[api_key(case.make(1))].name, case.version) for case in cases}


def served() -> set[tuple[str, int]]:
    """The APIs and versions that a broker serves."""
    return {
        (APIS[each.api_key].name, version)
        for each in ENDPOINTS.values()
        for version in range(each.min_version, each.max_version + 1)
    }


def other_versions(cases: Sequence[Case]) -> Iterator[Case]:
    """For each version that no case names the first case of the API with the nearest version, in this version."""
    by_name: dict[str, list[Case]] = {}
    for case in cases:
        by_name.setdefault(APIS[api_key(case.make(1))].name, []).append(case)
    for name, version in sorted(served() - covered(cases)):
        of_api = by_name.get(name)
        if of_api is not None:
            nearest = min(of_api, key=lambda case: abs(case.version - version))
            yield nearest._replace(version=version, quick=max(1, nearest.quick // QUICK_PART))
