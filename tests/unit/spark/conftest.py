from __future__ import annotations

import pytest

from pyspark_flowstone.reporting import HIDE_TRACEBACK
from pyspark_flowstone.versions import HAS_FILTER_PUSHDOWN

collect_ignore = [] if HAS_FILTER_PUSHDOWN else ["test_pushdown.py", "test_pushdown_bytes.py"]


@pytest.fixture(autouse=True)
def unchanged_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes back what an error leaves in the environment: here no process of Spark's ends with it."""
    monkeypatch.delenv(HIDE_TRACEBACK, raising=False)
    monkeypatch.setenv(HIDE_TRACEBACK, "")
