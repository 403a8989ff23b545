"""The order in which several processes run the tests: what takes long comes first, not when the others have ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Modules with single tests of many seconds.
LONG = (
    "chaos",
    "sim",
    "unit/cli/test_fuzz.py",
    "faults",
    "hostile/test_mutations.py",
    "fuzz",
    "unit/test_docs.py",
    "clients",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):  # set in the processes of pytest-xdist
        return
    counts = Counter(item.path for item in items)
    ranks = {path: (rank(path.relative_to(TESTS).as_posix()), -counts[path], str(path)) for path in counts}
    items.sort(key=lambda item: ranks[item.path])


def rank(module: str) -> int:
    """Return the place of a module among the others: long ones, then those with other programs, then unit tests."""
    for place, prefix in enumerate(LONG):
        if module.startswith(prefix):
            return place
    return len(LONG) + module.startswith("unit/")
