"""Runs the in-sync scenarios: commands, each followed by the trace it must leave.

A file holds scenarios that begin with `=== a sentence`. Commands begin with `>`; the lines after one are its trace;
lines with `#` are for people. `python -m tests.unit.replication.test_scenarios` writes the traces that happen into the
files, to be read before they are committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.replication.interpreter import Interpreter

SCENARIOS = Path(__file__).parent / "scenarios"


def read(path: Path) -> dict[str, list[str]]:
    scenarios: dict[str, list[str]] = {}
    title = ""
    for line in path.read_text().splitlines():
        if line.startswith("==="):
            title = line[3:].strip()
            assert title not in scenarios
            scenarios[title] = []
        elif title:
            scenarios[title].append(line)
    return scenarios


def run(lines: list[str]) -> list[str]:
    """The scenario's lines as they should be."""
    interpreter = Interpreter()
    actual = []
    for line in lines:
        if line.startswith(">"):
            actual += [line, *interpreter.run(line[1:])]
        elif line.startswith("#") or not line:
            actual.append(line)
    return actual


CASES = [
    pytest.param(lines, id=f"{path.stem}: {title}")
    for path in sorted(SCENARIOS.glob("*.txt"))
    for title, lines in read(path).items()
]


@pytest.mark.parametrize("lines", CASES)
def test_scenario_leaves_the_trace_that_is_written_down(lines: list[str]) -> None:
    assert run(lines) == lines


if __name__ == "__main__":
    for each in sorted(SCENARIOS.glob("*.txt")):
        head = each.read_text().split("===")[0]
        blocks = (f"=== {title}\n" + "\n".join(run(lines)) for title, lines in read(each).items())
        each.write_text(head + "\n".join(blocks).rstrip("\n") + "\n")
