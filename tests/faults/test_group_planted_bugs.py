"""A checker of groups that cannot fail is worthless: each of these bugs in a coordinator must be caught."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from .crash_points import CrashPoint
from .group_rounds import GroupRounds

LIVES_MAX = 4
ACKNOWLEDGED = 120


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ("answer_before_the_log_has_it", {"commit regression", "double owner"}),
        ("let_fenced_members_commit", {"fenced commit"}),
        ("give_everything_to_everybody", {"double owner"}),
        ("never_end_a_join", {"stuck group"}),
        ("begin_after_the_next_record", {"phantom commit", "skipped record"}),
    ],
)
def test_the_checker_catches_a_coordinator_that(tmp_path: Path, bug: str, expected: set[str]) -> None:
    with ExitStack() as stack:
        rounds = GroupRounds(tmp_path / "data", stack, sabotages=[bug])
        for _ in range(LIVES_MAX):
            rounds.live_and_die(CrashPoint(bug, ACKNOWLEDGED))
            if rounds.anomalies:
                break
        caught = {anomaly.kind for anomaly in rounds.anomalies}
        assert caught & expected, caught
