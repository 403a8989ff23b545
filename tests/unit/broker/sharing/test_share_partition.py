"""The share partition against an independent model, over random histories.

A few hundred of them run here. `FLOWSTONE_SHARE_HISTORIES=100000` runs so many, in some minutes.
"""

from __future__ import annotations

import os

from tests.unit.broker.sharing.model import History

HISTORIES = int(os.environ.get("FLOWSTONE_SHARE_HISTORIES", "300"))
STEPS = 60


def test_random_histories_are_those_of_the_model() -> None:
    for seed in range(HISTORIES):
        try:
            History(seed).run(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
