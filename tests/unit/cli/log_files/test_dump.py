"""`flowstone log dump` of what transactions leave in a data directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from tests.support.running_app import RunningApp

Run = Callable[..., subprocess.CompletedProcess[str]]

TIMEOUT_S = 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that has stopped: a commit, an abort, and an open transaction."""
    path = tmp_path_factory.mktemp("dumped")
    with RunningApp(str(path)) as app:
        with app.client() as client:
            assert client.create_topic("orders") == 0
        bootstrap = "{}:{}".format(*app.app.addresses["PLAINTEXT"])
        settings = {"bootstrap.servers": bootstrap, "transactional.id": "tx", "linger.ms": 0, "log_level": 0}
        producer = ck.Producer(settings)
        producer.init_transactions(TIMEOUT_S)
        for value, end in (
            (b"kept", producer.commit_transaction),
            (b"dropped", producer.abort_transaction),
            (b"open", None),
        ):
            producer.begin_transaction()
            producer.produce("orders", value, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
            if end is not None:
                end(TIMEOUT_S)
    return path


def documents(output: str, kind: str) -> list[dict[str, Any]]:
    return [told[kind] for told in map(json.loads, output.splitlines()) if kind in told]


def file_of(directory: Path, suffix: str) -> Path:
    return max(directory.glob(f"*{suffix}"))


def test_end_markers_are_shown_as_what_they_decide(run: Run, directory: Path) -> None:
    told = run("log", "dump", "--records", file_of(directory / "orders-0", ".log"))
    assert told.returncode == 0
    batches = [line for line in told.stdout.splitlines() if ", control: " in line]
    assert [line.partition(", control: ")[2] for line in batches] == [
        "COMMIT of coordinator epoch 0",
        "ABORT of coordinator epoch 0",
    ]
    records = [line for line in told.stdout.splitlines() if line.startswith("    ")]
    assert [line.split(maxsplit=2)[2] for line in records] == [
        "null 'kept'",
        "COMMIT of coordinator epoch 0",
        "null 'dropped'",
        "ABORT of coordinator epoch 0",
        "null 'open'",
    ]
    found = documents(run("log", "dump", file_of(directory / "orders-0", ".log"), "--json").stdout, "batch")
    assert [each["marker"] and each["marker"]["type"] for each in found] == [None, "COMMIT", None, "ABORT", None]


def test_a_partition_is_dumped_with_its_aborted_transactions_and_producers(run: Run, directory: Path) -> None:
    told = run("log", "dump", directory / "orders-0", "--json").stdout
    (aborted,) = documents(told, "aborted")
    assert (aborted["first_offset"], aborted["last_offset"], aborted["last_stable_offset"]) == (2, 3, 4)
    (producer,) = documents(told, "producer")
    assert producer["producer_id"] == aborted["producer_id"]
    assert (producer["last_sequence"], producer["last_offset"], producer["transaction_first_offset"]) == (2, 4, 4)
    assert producer["coordinator_epoch"] == 0
    text = run("log", "dump", directory / "orders-0").stdout
    assert "aborted from offset 2 to the marker at 3, last stable offset 4" in text
    assert "open transaction from offset 4" in text


@pytest.mark.parametrize(("suffix", "kind"), [(".txnindex", "aborted"), (".snapshot", "producer")])
def test_either_file_can_be_dumped_alone(run: Run, directory: Path, suffix: str, kind: str) -> None:
    told = run("log", "dump", file_of(directory / "orders-0", suffix), "--json")
    assert (told.returncode, len(documents(told.stdout, kind)), told.stdout.count("\n")) == (0, 1, 1)


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [(".txnindex", "33 bytes after the last whole entry"), (".snapshot", "its version, length or checksum is wrong")],
)
def test_a_damaged_file_is_told_of(run: Run, directory: Path, tmp_path: Path, suffix: str, reason: str) -> None:
    whole = file_of(directory / "orders-0", suffix)
    (tmp_path / whole.name).write_bytes(whole.read_bytes()[:-1])
    told = run("log", "dump", tmp_path / whole.name)
    assert told.returncode == 1
    assert "  DAMAGED: " in told.stdout
    assert reason in told.stdout


def test_the_state_of_transactional_ids_is_decoded(run: Run, directory: Path) -> None:
    (log,) = (each for each in directory.glob("__transaction_state-*/*.log") if each.stat().st_size)
    told = [each["transaction"] for each in documents(run("log", "dump", "--records", log, "--json").stdout, "record")]
    assert {each["transactional_id"] for each in told} == {"tx"}
    states = [each["state"] for each in told]
    assert states == [
        *("Empty", "Ongoing", "PrepareCommit", "CompleteCommit"),
        *("Ongoing", "PrepareAbort", "CompleteAbort", "Ongoing"),
    ]
    assert told[-1]["partitions"] == [{"topic": "orders", "partition": 0}]
    text = run("log", "dump", "--records", log).stdout
    assert f"tx: Ongoing, producer {told[-1]['producer_id']}/{told[-1]['producer_epoch']}, timeout 60000 ms" in text
    assert text.rstrip().endswith("partitions orders/0")


def test_a_record_that_is_no_state_is_shown_as_it_is(run: Run, directory: Path, tmp_path: Path) -> None:
    partition = tmp_path / "__transaction_state-0"
    partition.mkdir()
    log = file_of(directory / "orders-0", ".log")
    (partition / log.name).write_bytes(log.read_bytes())
    assert "null 'kept'" in run("log", "dump", "--records", partition).stdout


def test_a_file_of_another_name_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "some.txnindex").write_bytes(b"")
    told = run("log", "dump", tmp_path / "some.txnindex")
    assert told.returncode == 1
    assert "is not named like a log file" in told.stderr
