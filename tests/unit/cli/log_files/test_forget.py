from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from flowstone.errors import ErrorCode
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The data directory of a broker that had two of them, with a topic of a partition on each."""
    data = f"{tmp_path}/a,{tmp_path}/b"
    with RunningApp(data) as broker, broker.client() as client:
        client.create_topic("orders", 2)
        for partition in range(2):
            client.produce("orders", batch_of(b"v"), partition=partition)
    shutil.rmtree(tmp_path / "b")
    return tmp_path / "a"


def missing_id(left: Path) -> str:
    fields = dict(line.split("=", 1) for line in (left / "meta.properties").read_text().splitlines())
    (missing,) = set(fields["flowstone.known.directory.ids"].split(",")) - {fields["directory.id"]}
    return missing


def served(left: Path) -> list[ErrorCode]:
    with RunningApp(f"{left},{left.parent}/b") as broker, broker.client() as client:
        answers = [client.produce("orders", batch_of(b"v"), partition=partition) for partition in range(2)]
    return [ErrorCode(each.error_code) for each in answers]


def test_a_lost_directory_is_given_up_and_its_partitions_begin_anew(run: Run, left: Path) -> None:
    assert served(left) == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]
    assert run("log", "forget", missing_id(left), left, "--yes").returncode == 0
    assert served(left) == [ErrorCode.NONE, ErrorCode.NONE]


def test_nothing_is_given_up_without_leave(run: Run, left: Path) -> None:
    told = run("log", "forget", missing_id(left), left)
    assert told.returncode == 1
    assert "would be lost" in told.stderr
    assert served(left) == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR]


def test_an_id_that_is_not_missing_is_refused(run: Run, left: Path) -> None:
    told = run("log", "forget", "nonsense", left, "--yes")
    assert f"no directory with id nonsense is missing; missing are: {missing_id(left)}" in told.stderr


def test_a_directory_that_is_there_is_not_forgotten(run: Run, left: Path) -> None:
    fields = dict(line.split("=", 1) for line in (left / "meta.properties").read_text().splitlines())
    assert "is one of the remaining directories" in run("log", "forget", fields["directory.id"], left, "--yes").stderr


def test_a_running_brokers_directories_are_left_alone(run: Run, left: Path) -> None:
    with RunningApp(str(left)):
        assert "is in use" in run("log", "forget", missing_id(left), left, "--yes").stderr


def test_what_is_no_data_directory_is_refused(run: Run, tmp_path: Path) -> None:
    assert "is not a data directory" in run("log", "forget", "id", tmp_path, "--yes").stderr


def test_programs_are_told_in_a_document(run: Run, left: Path) -> None:
    missing = missing_id(left)
    assert json.loads(run("log", "forget", missing, left, "--yes", "--json").stdout) == {"forgotten": missing}
