"""Runs the scenarios: commands, each followed by the trace it must leave.

A file holds scenarios that begin with `=== a sentence`. Commands begin with `>`; the lines after one are its trace;
lines with `#` are for people. `python -m tests.unit.cluster.test_scenarios` writes the traces that happen
into the files, to be read before they are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.cluster.interpreter import Interpreter

SCENARIOS = Path(__file__).parent / "scenarios"


@dataclass
class Scenario:
    title: str
    lines: list[str]

    def run(self) -> list[str]:
        """The scenario's lines as they should be."""
        interpreter = Interpreter()
        actual = []
        for line in self.lines:
            if line.startswith(">"):
                actual.append(line)
                actual.extend(interpreter.run(line[1:]))
            elif line.startswith("#") or not line:
                actual.append(line)
        return actual


def read(path: Path) -> list[Scenario]:
    scenarios: list[Scenario] = []
    for line in path.read_text().splitlines():
        if line.startswith("==="):
            scenarios.append(Scenario(line[3:].strip(), []))
        elif scenarios:
            scenarios[-1].lines.append(line)
    return scenarios


def cases() -> list[object]:
    return [
        pytest.param(scenario, id=f"{path.stem}: {scenario.title}")
        for path in sorted(SCENARIOS.glob("*.txt"))
        for scenario in read(path)
    ]


@pytest.mark.parametrize("scenario", cases())
def test_scenario_leaves_the_trace_that_is_written_down(scenario: Scenario) -> None:
    assert scenario.run() == scenario.lines


def rewrite(path: Path) -> None:
    head = path.read_text().split("===")[0]
    blocks = (f"=== {scenario.title}\n" + "\n".join(scenario.run()) for scenario in read(path))
    path.write_text(head + "\n".join(blocks).rstrip("\n") + "\n")


if __name__ == "__main__":
    for each in sorted(SCENARIOS.glob("*.txt")):
        rewrite(each)
