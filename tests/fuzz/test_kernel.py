"""A short run of every fuzz target, and the proof that each would find a bug of its kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fuzz import run

SECONDS = int(os.environ.get("FLOWSTONE_FUZZ_SECONDS", "12"))
FINDING_SECONDS_MAX = 60
# Of each target, a check of the kernel without which it reads or writes too far: file, check, what is left of it.
PLANTED = {
    "check_records": ("records.h", "if (*length > end - *at)", "if (*length > end - *at + 64)"),
    "chosen_records": ("records.h", "if (length > end - *at)", "if (length > end - *at + 64)"),
    "key_hashes": ("records.h", "if (length > end - *at)", "if (length > end - *at + 64)"),
    "find_timestamp": ("records.h", "if (length > end - *at)", "if (length > end - *at + 64)"),
    "columns": ("columns.c", "capacity_bytes - column->size_bytes;", "capacity_bytes;"),
    "key_map": ("records.h", "if (*length > end - *at)", "if (*length > end - *at + 64)"),
    "compaction": ("compaction.h", "if (end - at < batch->size_bytes)", "if (end - at + 64 < batch->size_bytes)"),
    "frames": ("frames.c", "if (stored > end - at)", "if (stored > end - at + 64)"),
    "refused_records": ("records.h", "if (length > end - *at)", "if (length > end - *at + 64)"),
    "stored_records": ("records.h", "if (*length > end - *at)", "if (*length > end - *at + 64)"),
    "json_rows": ("json_scan.h", "while (here < end && *here", "while (here <= end && *here"),
    "batches": ("batches.c", "end <= column->data_bytes", "end <= column->data_bytes + 1"),
}

missing = run.missing()
pytestmark = [
    pytest.mark.skipif(bool(missing), reason=f"the kernel is not fuzzed: {missing}"),
    pytest.mark.timeout(300 + 2 * SECONDS),
]


@pytest.mark.parametrize("target", run.TARGETS)
def test_nothing_is_found_in_a_short_run(target: str, tmp_path: Path) -> None:
    seconds = max(1, SECONDS // len(run.TARGETS))

    fuzzed = run.fuzz(target, run.build(target, tmp_path), tmp_path / "corpus", seconds)

    assert not fuzzed.finding, fuzzed.finding
    assert fuzzed.executions > len(run.seeds(target))


@pytest.mark.parametrize("target", run.TARGETS)
def test_a_planted_bug_is_found(target: str, tmp_path: Path) -> None:
    kernel = shutil.copytree(run.KERNEL, tmp_path / "kernel", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    file, check, left = PLANTED[target]
    source = (kernel / file).read_text()
    assert check in source
    (kernel / file).write_text(source.replace(check, left))

    fuzzed = run.fuzz(target, run.build(target, tmp_path, kernel), tmp_path / "corpus", FINDING_SECONDS_MAX)

    assert "AddressSanitizer" in fuzzed.finding or "runtime error" in fuzzed.finding
    assert "Test unit written to" in fuzzed.finding
