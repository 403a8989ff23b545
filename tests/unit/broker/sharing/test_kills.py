"""A broker that is killed while members of a share group work: accepted stays accepted, and nothing is lost.

Three kills for each ordering run here. `FLOWSTONE_SHARE_KILLS=100` kills so often for each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.broker_process import UP
from tests.support.sharing.killed_work import Work

KILLS = int(os.environ.get("FLOWSTONE_SHARE_KILLS", "3"))


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_kills_lose_nothing_and_bring_nothing_back(tmp_path: Path, ordering: str) -> None:
    Work(tmp_path, seed=1, ordering=ordering).run([UP] * KILLS)
