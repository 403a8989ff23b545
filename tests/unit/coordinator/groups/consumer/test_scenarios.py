"""What consumer groups do, in scenarios.

Their form is that of `tests.support.scenarios`.
`python -m tests.unit.coordinator.groups.consumer.test_scenarios` writes the traces anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scenarios import Scenarios
from tests.unit.coordinator.groups.consumer.interpreter import Interpreter

SCENARIOS = Scenarios(Path(__file__).parent / "scenarios", Interpreter)


@pytest.mark.parametrize("lines", SCENARIOS.cases())
def test_scenario_leaves_the_trace_that_is_written_down(lines: list[str]) -> None:
    assert SCENARIOS.run(lines) == lines


if __name__ == "__main__":
    SCENARIOS.rewrite()
