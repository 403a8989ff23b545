"""How many functions and files a request passes through. The limits may only be lowered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.walk.paths import fetch, join, micro_batch, produce
from tests.walk.recorder import Walk, line_count

FUNCTION_LINES_MAX = 45
# Timers of the broker may add a few functions to each run.
LIMITS = [(produce, 91, 39), (fetch, 74, 28), (join, 66, 26), (micro_batch, 96, 27)]


@pytest.mark.parametrize(("path", "functions_max", "files_max"), LIMITS, ids=[path.__name__ for path, _, _ in LIMITS])
def test_a_path_runs_through_no_more_functions_and_files_than_its_limit(
    path: Callable[[], Walk], functions_max: int, files_max: int
) -> None:
    walk = path()
    told = f"{walk.name} runs {len(walk.functions)} functions in {len(walk.files)} files: see make walk"
    assert len(walk.functions) <= functions_max, told
    assert len(walk.files) <= files_max, told
    assert line_count(walk.longest) <= FUNCTION_LINES_MAX, walk.longest.co_qualname
    assert len(walk.functions) > functions_max // 2, "most of the path was not recorded"
