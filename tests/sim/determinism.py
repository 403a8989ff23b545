"""What is left to chance in a broker, taken from the seed instead: ids, and the order of sets of objects.

The machine's entropy is one function; sets that are iterated over would go by addresses in memory. Strings hash as
PYTHONHASHSEED says, so whoever wants the same run again in another process sets that (`run` does).
"""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Iterable, Iterator, MutableSet
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

# Modules that keep sets of objects and go through them.
_MODULES_WITH_SETS = (
    "flowstone.broker.fetching.fetch_sessions",
    "flowstone.broker.coordinators.group_coordinator",
    "flowstone.broker.network.server",
    "flowstone.broker.requests.parked",
    "flowstone.coordinator.runtime",
    "flowstone.log.lifecycle.flusher",
    "flowstone.log.lifecycle.housekeeping",
    "flowstone.replication.waiters",
)


class OrderedSet(MutableSet[Any]):
    """A set that is gone through in the order in which it was filled."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._values: dict[Any, None] = dict.fromkeys(values)

    def __class_getitem__(cls, _: object) -> type[OrderedSet]:
        return cls

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: Any) -> None:
        self._values[value] = None

    def discard(self, value: Any) -> None:
        self._values.pop(value, None)

    def update(self, values: Iterable[Any]) -> None:
        self._values.update(dict.fromkeys(values))

    def difference_update(self, values: Iterable[Any]) -> None:
        for value in values:
            self.discard(value)


@contextmanager
def chance_from(seed: int) -> Iterator[None]:
    source = random.Random(seed)
    with ExitStack() as patches:
        patches.enter_context(patch.object(os, "urandom", source.randbytes))
        patches.enter_context(patch.object(random, "_urandom", source.randbytes))
        for name in _MODULES_WITH_SETS:
            patches.enter_context(patch.object(importlib.import_module(name), "set", OrderedSet, create=True))
        yield
