"""`log verify` and `log repair`, where an index of aborted transactions is wrong in a way that no start notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from flowstone.log.segments.transaction_index import TRANSACTION_ENTRY
from tests.unit.transactions.history import History
from tests.unit.transactions.test_log_life import TOPIC, Stopped, filled, flip, index_files, started

Run = Callable[..., CompletedProcess[str]]
PRODUCER_ID_END, FIRST_OFFSET_END = 9, 17  # the last byte of the field


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return filled(tmp_path_factory.mktemp("stopped") / "data", is_killed=False)


@pytest.fixture
def copied(stopped: Stopped, tmp_path: Path) -> tuple[Path, History]:
    return stopped.copied_to(tmp_path / "data")


def first_index(data: Path) -> Path:
    return next(path for path in index_files(data)[:-1] if path.stat().st_size)


def lose_all_entries(path: Path) -> None:
    path.write_bytes(b"")


def lose_the_last_entry(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -TRANSACTION_ENTRY.size])


def name_another_producer(path: Path) -> None:
    flip(path, PRODUCER_ID_END)


def begin_elsewhere(path: Path) -> None:
    flip(path, path.stat().st_size - TRANSACTION_ENTRY.size + FIRST_OFFSET_END)


def test_good_indexes_are_left_alone(run: Run, copied: tuple[Path, History]) -> None:
    data, _ = copied
    before = [path.read_bytes() for path in index_files(data)]
    assert run("log", "verify", data).returncode == 0
    assert "nothing to repair" in run("log", "repair", data, "--topic", TOPIC, "--partition", 0, "--yes").stdout
    assert [path.read_bytes() for path in index_files(data)] == before


@pytest.mark.parametrize("damage", [lose_all_entries, lose_the_last_entry, name_another_producer, begin_elsewhere])
def test_a_wrong_index_is_named_and_rebuilt_after_a_repair(
    run: Run, copied: tuple[Path, History], damage: Callable[[Path], None]
) -> None:
    data, history = copied
    path = first_index(data)
    good = path.read_bytes()
    damage(path)
    verified = run("log", "verify", data)
    assert verified.returncode == 1
    assert f"{path}: " in verified.stdout
    repaired = run("log", "repair", data, "--topic", TOPIC, "--partition", 0)
    assert f"invalidated {path}; the broker's next start rebuilds it" in repaired.stdout
    for _broker, _client in started(data, history):
        history.check()
    assert path.read_bytes() == good
    assert run("log", "verify", data).returncode == 0


def test_programs_are_told_which_index_is_rebuilt(run: Run, copied: tuple[Path, History]) -> None:
    data, _ = copied
    path = first_index(data)
    lose_all_entries(path)
    told = run("log", "repair", data, "--topic", TOPIC, "--partition", 0, "--json").stdout.splitlines()
    assert json.loads(told[-1]) == {"repaired": {}, "invalidated": [str(path)]}
