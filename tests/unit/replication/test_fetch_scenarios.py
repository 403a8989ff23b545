"""Runs the fetch scenarios, in the form of `test_scenarios`: commands, each followed by the trace it must leave.

`python -m tests.unit.replication.test_fetch_scenarios` writes the traces that happen into the file, to be read before
they are committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.replication.fetch_interpreter import FetchInterpreter
from tests.unit.replication.test_scenarios import read

SCENARIOS = Path(__file__).parent / "fetch_scenarios"


def run(lines: list[str]) -> list[str]:
    """The scenario's lines as they should be."""
    interpreter = FetchInterpreter()
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
