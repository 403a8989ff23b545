from __future__ import annotations

import pytest
from scripts.spark_versions import Outcome, summary_of


@pytest.mark.parametrize(
    ("output", "summary"),
    [
        ("....s\n5 passed, 1 skipped in 12.34s\n", "5 passed, 1 skipped"),
        ("FAILED tests/x.py::test_y\n1 failed, 2 errors in 3.00s (0:00:03)", "1 failed, 2 errors"),
        ("", "no output"),
        ("ImportError: cannot import name x", "ImportError: cannot import name x"),
    ],
)
def test_the_summary_of_a_version_is_the_last_line_of_pytest(output, summary):
    assert summary_of(output) == summary


def test_a_version_has_one_line():
    assert str(Outcome("4.0.5", False, "1 failed", 12.3)) == "PySpark 4.0.5: FAILED, 1 failed, 12 s"
