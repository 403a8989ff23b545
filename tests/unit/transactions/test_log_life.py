"""What read_committed readers see of a log through its life: kills, damaged files, deletion, copies.

A broker in a process of its own is asked by raw requests; a random history says what must be seen.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.transactions import TransactionClient, eventually
from tests.support.wire_client import Client
from tests.unit.transactions.history import History, alter, delete_records, earliest

TOPIC, STEPS = "t", 400
SETTINGS = {"transaction.state.log.num.partitions": "1", "log.retention.check.interval.ms": "100"}
SEGMENTS_MIN = 4


class Stopped:
    """The data of a broker that was stopped amid a history, and the history."""

    def __init__(self, data: Path, history: History) -> None:
        self.data, self._history = data, history

    def copied_to(self, data: Path) -> tuple[Path, History]:
        shutil.copytree(self.data, data)
        history = copy.copy(self._history)
        for name in ("_producers", "_open", "_sequences", "_outcomes", "written"):
            setattr(history, name, copy.copy(getattr(history, name)))
        history._producers = [copy.copy(each) for each in history._producers]
        return data, history


def filled(data: Path, *, is_killed: bool) -> Stopped:
    with BrokerProcess(data, settings=SETTINGS) as broker, broker.connect() as client:
        assert client.create_topic(TOPIC, segment_bytes=str(1 << 20)) == 0
        TransactionClient(client).begin()
        history = History(client, TOPIC)
        history.run(STEPS)
        history.check()
        assert history.stable_offset() is not None
        if not is_killed:
            assert broker.terminate() == 0
    assert len(list((data / f"{TOPIC}-0").glob("*.log"))) >= SEGMENTS_MIN
    return Stopped(data, history)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return filled(tmp_path_factory.mktemp("killed") / "data", is_killed=True)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return filled(tmp_path_factory.mktemp("stopped") / "data", is_killed=False)


@pytest.fixture(params=["killed", "stopped"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, History]:
    found: Stopped = request.getfixturevalue(request.param)
    return found.copied_to(tmp_path / "data")


def started(data: Path, history: History) -> Iterator[tuple[BrokerProcess, Client]]:
    with BrokerProcess(data, settings=SETTINGS) as broker, broker.connect() as client:
        history.connect(client)
        yield broker, client


def index_files(data: Path) -> list[Path]:
    return sorted((data / f"{TOPIC}-0").glob("*.txnindex"))


def snapshot_files(data: Path) -> list[Path]:
    return sorted((data / f"{TOPIC}-0").glob("*.snapshot"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def nothing(_data: Path) -> None:
    """Leave all files as they are."""


def remove_indexes(data: Path) -> None:
    for path in index_files(data):
        path.unlink()


def remove_an_index(data: Path) -> None:
    index_files(data)[1].unlink()


def remove_the_first_index(data: Path) -> None:
    index_files(data)[0].unlink()


def cut_indexes(data: Path) -> None:
    for path in index_files(data):
        path.write_bytes(path.read_bytes()[:-1])


def lengthen_indexes(data: Path) -> None:
    for path in index_files(data):
        path.write_bytes(path.read_bytes() + bytes(34))


def remove_snapshots(data: Path) -> None:
    for path in snapshot_files(data):
        path.unlink()


def flip_snapshots(data: Path) -> None:
    for path in snapshot_files(data):
        flip(path, path.stat().st_size // 2)


def remove_all_that_is_derived(data: Path) -> None:
    remove_indexes(data)
    remove_snapshots(data)
    for pattern in ("*.index", "*.timeindex", "leader-epoch-checkpoint"):
        for path in (data / f"{TOPIC}-0").glob(pattern):
            path.unlink()
    (data / "recovery-point-offset-checkpoint").unlink(missing_ok=True)


DAMAGES = [
    nothing,
    remove_indexes,
    remove_an_index,
    remove_the_first_index,
    cut_indexes,
    lengthen_indexes,
    remove_snapshots,
    flip_snapshots,
    remove_all_that_is_derived,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_readers_see_the_same_after_a_start_and_transactions_go_on(
    copied: tuple[Path, History], damage: Callable[[Path], None]
) -> None:
    data, history = copied
    damage(data)
    for _broker, _client in started(data, history):
        history.check()
        history.run(20)
        history.check()
        history.end_all(commit=True)
        history.check()


def test_readers_see_the_same_after_kill_upon_kill(copied: tuple[Path, History]) -> None:
    data, history = copied
    for _ in range(3):
        for broker, _client in started(data, history):
            history.check()
            history.run(30)
            broker.kill()
    for _broker, _client in started(data, history):
        history.check()


def test_readers_see_the_same_after_records_are_deleted(killed: Stopped, tmp_path: Path) -> None:
    data, history = killed.copied_to(tmp_path / "data")
    stable = history.stable_offset()
    assert stable is not None
    for _broker, client in started(data, history):
        for offset in (1, stable // 3, stable // 2):
            assert delete_records(client, TOPIC, offset) == offset
            assert history.seen(start=offset) == history.expected(offset)
    for _broker, _client in started(data, history):
        assert history.seen(start=stable // 2) == history.expected(stable // 2)


def test_records_may_be_deleted_beyond_an_open_transaction(killed: Stopped, tmp_path: Path) -> None:
    data, history = killed.copied_to(tmp_path / "data")
    for _broker, client in started(data, history):
        end = client.fetch(TOPIC, 0).high_watermark
        assert delete_records(client, TOPIC, -1) == end
        answer = client.fetch(TOPIC, end, isolation_level=1)
        assert (answer.error_code, answer.last_stable_offset, answer.log_start_offset) == (0, end, end)
        history.end_all(commit=True)
        history.run(10)
        history.end_all(commit=True)
        assert history.seen(start=end) == history.expected(end)
    for _broker, _client in started(data, history):
        assert history.seen(start=end) == history.expected(end)


def retain_less(client: Client, data: Path) -> tuple[int, int]:
    """Wait until retention has deleted something; return where the log starts, and how many indexes there were."""
    before = len(index_files(data))
    alter(client, TOPIC, retention_bytes=str(2 << 20))
    eventually(lambda: client.fetch(TOPIC, 0).error_code != 0)
    return earliest(client, TOPIC), before


def test_retention_deletes_segments_with_their_indexes(killed: Stopped, tmp_path: Path) -> None:
    data, history = killed.copied_to(tmp_path / "data")
    for _broker, client in started(data, history):
        start, before = retain_less(client, data)
        assert history.seen(start=start) == history.expected(start)
        eventually(lambda: len(index_files(data)) < before)  # noqa: B023
    for _broker, _client in started(data, history):
        assert history.seen(start=start) == history.expected(start)
        history.end_all(commit=False)
        assert history.seen(start=start) == history.expected(start)
