"""The promises T1 to T6 over many random lives of transactions. A failure names its seed.

FLOWSTONE_TRANSACTION_SEEDS=first:count runs others, or more: FLOWSTONE_TRANSACTION_SEEDS=2000:100000, say.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.coordinator.transactions.simulation import World

SEEDS_PER_TEST = 100
FIRST, COUNT = (int(number) for number in os.environ.get("FLOWSTONE_TRANSACTION_SEEDS", "0:400").split(":"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_PER_TEST))
def test_transactions_keep_their_promises_whatever_befalls_them(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, FIRST + COUNT)):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
