"""Requests that undo what a case of `worst_requests` has changed: without them, a second try would have less to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowstone.wire import messages as m
from tests.hostile.worst_case import Case
from tests.hostile.worst_requests import BROKER, TOPIC, WIDE, _alter, _create, _delete, _names


class Request(NamedTuple):
    version: int
    body: Any


Undoing = Callable[[int], Sequence[Request]]


def undoing(case: Case, count: int) -> Sequence[Request]:
    """Return the requests that undo the case's request of `count` elements, in order."""
    requests = _UNDOING.get(case.name)
    return () if requests is None else requests(count)


def _without(stem: str) -> Undoing:
    return lambda n: [Request(6, _delete(_names(n, stem)))]


def _again(names: Callable[[int], list[str]]) -> Undoing:
    return lambda n: [Request(7, _create(names(n)))]


def _altered(kind: int, names: Callable[[int], list[str]], *, incremental: bool) -> Undoing:
    """The other of the two APIs sets another value."""
    return lambda n: [Request(1 if incremental else 2, _alter(kind, names(n), incremental=incremental))]


def _made(count: int) -> list[str]:
    return _names(count, "made")


_UNDOING: dict[str, Undoing] = {
    # The names of cases.
    "Metadata that creates": _without("made"),
    "CreateTopics": _without("created"),
    "CreateTopics of many partitions": lambda n: [Request(6, _delete(["broad"]))],
    "CreatePartitions": lambda n: [Request(6, _delete(_made(n))), Request(7, _create(_made(n)))],
    "DeleteTopics": _again(_made),
    "DeleteTopics of many partitions": lambda n: [Request(7, _create(["broad"], partitions=min(n, 10_000)))],
    "CreateAcls": lambda n: [Request(3, m.DeleteAclsRequest(filters=[m.DeleteAclsRequestFilter()]))],
}
for _kind, _stem, _list in ((TOPIC, "made0", _made), (TOPIC, WIDE, lambda n: [WIDE] * n), (BROKER, "n0", _names)):
    _UNDOING[f"AlterConfigs of {_stem}, type {_kind}"] = _altered(_kind, _list, incremental=True)
    _UNDOING[f"IncrementalAlterConfigs of {_stem}, type {_kind}"] = _altered(_kind, _list, incremental=False)
