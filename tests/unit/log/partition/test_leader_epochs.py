from __future__ import annotations

import pytest

from flowstone.log.partition.leader_epochs import LeaderEpochs


@pytest.fixture
def epochs() -> LeaderEpochs:
    """Epoch 2 from offset 10, epoch 5 from 20, epoch 6 from 35."""
    made = LeaderEpochs()
    for epoch, offset in ((2, 10), (5, 20), (6, 35)):
        assert made.assign(epoch, offset)
    return made


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(-1, (-1, -1), id="undefined"),
        pytest.param(7, (-1, -1), id="above the latest"),
        pytest.param(6, (6, 50), id="the latest ends at the log's end"),
        pytest.param(5, (5, 35), id="an epoch ends where the next begins"),
        pytest.param(4, (2, 20), id="an epoch without records: the one before"),
        pytest.param(1, (1, 10), id="before the first: where that one begins"),
    ],
)
def test_an_epoch_ends_where_kafka_says(epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, 50) == answer


def test_no_epochs_means_no_answer() -> None:
    assert LeaderEpochs().end_offset_for(0, 10) == (-1, -1)


def test_an_epoch_already_known_is_no_news(epochs: LeaderEpochs) -> None:
    assert not epochs.assign(6, 40)
    assert not epochs.assign(5, 40)
    assert epochs.entries() == [(2, 10), (5, 20), (6, 35)]


def test_an_epoch_without_a_record_is_replaced_by_the_next(epochs: LeaderEpochs) -> None:
    assert epochs.assign(7, 35)
    assert epochs.entries() == [(2, 10), (5, 20), (7, 35)]


def test_a_record_has_the_epoch_it_was_written_in(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_of(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 5, 6]


def test_truncating_the_end_forgets_later_epochs(epochs: LeaderEpochs) -> None:
    assert epochs.truncate_end(20)
    assert epochs.entries() == [(2, 10)]


def test_truncating_the_start_keeps_the_epoch_it_falls_into(epochs: LeaderEpochs) -> None:
    assert epochs.truncate_start(15)
    assert epochs.entries() == [(2, 15), (5, 20), (6, 35)]
    assert epochs.truncate_start(25)
    assert epochs.entries() == [(5, 25), (6, 35)]


def test_truncating_the_start_at_an_epochs_start_keeps_it(epochs: LeaderEpochs) -> None:
    assert epochs.truncate_start(20)
    assert epochs.entries() == [(5, 20), (6, 35)]
    assert not epochs.truncate_start(20)


def test_the_checkpoint_is_kafkas_text(epochs: LeaderEpochs) -> None:
    assert epochs.encode() == b"0\n3\n2 10\n5 20\n6 35\n"
    assert LeaderEpochs.decode(epochs.encode()) == epochs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n1\n-1 10\n",
        b"0\n1\n",
        b"1\n0\n",
        b"0\n1\n2 10",
        b"0\n2\n2 10\n2 20\n",
        b"0\n2\n2 10\n3 10\n",
        b"0\n1\nx 10\n",
        b"\xff",
    ],
)
def test_a_damaged_checkpoint_is_refused(data: bytes) -> None:
    assert LeaderEpochs.decode(data) is None


def test_the_latest_epoch_is_that_of_the_last_entry_after_truncating(epochs: LeaderEpochs) -> None:
    assert not epochs.truncate_end(36)
    assert epochs.latest == 6
    assert epochs.truncate_end(35)
    assert epochs.latest == 5
    assert epochs.assign(6, 30)
    assert epochs.truncate_end(10)
    assert (epochs.latest, epochs.entries()) == (-1, [])


def test_epochs_begin_with_zero(epochs: LeaderEpochs) -> None:
    made = LeaderEpochs()
    assert not made.assign(-1, 0)
    assert made.assign(0, 0)
    assert LeaderEpochs.decode(b"0\n1\n0 0\n") == made
    assert LeaderEpochs.decode(b"0\n2\n0 10\n1 5\n") is None
    assert made != [(0, 0)]
