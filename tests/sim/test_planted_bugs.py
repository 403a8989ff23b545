"""A simulation that finds nothing must be one that would: each of these bugs is found by one of the first seeds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from .bugs.bug import Found
from .planted import BUGS, SEEDS_MAX, search
from .run import HASH_SEED


@pytest.fixture(scope="module")
def searches() -> Iterator[Mapping[str, Future[Found | None]]]:
    """All of them, on every processor, with the hash seed that makes a seed's run the same in all of them."""
    with (
        pytest.MonkeyPatch.context() as environment,
        ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as processes,
    ):
        environment.setenv("PYTHONHASHSEED", HASH_SEED)
        yield {name: processes.submit(search, name, SEEDS_MAX) for name in BUGS}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(searches: Mapping[str, Future[Found | None]], name: str) -> None:
    found = searches[name].result()
    assert found is not None, f"{name} went unnoticed in {SEEDS_MAX} seeds"
    print(f"{name}: seed {found.seed}: {found.problem}")
