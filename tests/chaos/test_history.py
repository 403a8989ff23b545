"""The checker of clusters finds what it is there to find, and nothing in a history that is right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch
from tests.faults.checker import ACKS_ALL, ObservedLog, Origin, make_value

from .history import ClusterHistory, Journal
from .replicas import compare, observe, offsets_of_later_epochs, read_copy

PARTITION = TopicPartition("safe", 0)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ClusterHistory]:
    with Journal(tmp_path / "history.jsonl") as journal:
        yield ClusterHistory(journal)


def send(history: ClusterHistory, count: int = 1, producer: str = "p") -> list[Origin]:
    return [history.next_origin(PARTITION, producer) for _ in range(count)]


def a_log(*origins: Origin) -> dict[TopicPartition, ObservedLog]:
    return {PARTITION: ObservedLog(0, len(origins), [(at, make_value(each)) for at, each in enumerate(origins)])}


def kinds(history: ClusterHistory, *origins: Origin) -> list[str]:
    return [anomaly.kind for anomaly in history.check_cluster(a_log(*origins))]


def test_a_record_sent_after_another_was_acknowledged_lies_behind_it(history: ClusterHistory) -> None:
    (first,), (second,) = send(history), send(history, producer="q")
    sent_s = time.monotonic()
    history.answer(PARTITION, 1, first, ACKS_ALL, sent_s)
    history.answer(PARTITION, 0, second, ACKS_ALL, sent_s)
    assert kinds(history, second, first) == []
    (third,) = send(history, producer="r")
    history.answer(PARTITION, 2, third, ACKS_ALL, time.monotonic())
    assert kinds(history, second, first, third) == []


def test_a_record_sent_after_another_was_acknowledged_must_not_lie_before_it(history: ClusterHistory) -> None:
    (first,), (second,) = send(history), send(history, producer="q")
    history.answer(PARTITION, 1, first, ACKS_ALL, time.monotonic())
    history.answer(PARTITION, 0, second, ACKS_ALL, time.monotonic())
    assert kinds(history, second, first) == ["real-time order"]


def test_what_was_acknowledged_without_an_offset_must_be_somewhere(history: ClusterHistory) -> None:
    first, second = send(history, 2)
    for origin in (first, second):
        history.answer(PARTITION, None, origin, ACKS_ALL, time.monotonic())
    assert kinds(history, first) == ["lost write"]
    assert "lost write" not in kinds(history, first, second)


def test_what_acks_1_acknowledged_may_be_lost_and_is_counted(history: ClusterHistory) -> None:
    first, second, third = send(history, 3)
    for offset, origin in enumerate((first, second)):
        history.answer(PARTITION, offset, origin, 1, time.monotonic())
    assert history.check_leaderly(a_log(first, third)) == ([], 1)


def test_what_acks_1_acknowledged_and_somebody_saw_must_not_be_lost(history: ClusterHistory) -> None:
    first, second, third = send(history, 3)
    history.see(PARTITION, 1, make_value(second))
    (anomaly,), _ = history.check_leaderly(a_log(first, third))
    assert anomaly.kind == "taken back"


def test_copies_that_differ_in_a_byte_are_found(tmp_path: Path) -> None:
    copies = {}
    for node_id, values in enumerate(((b"a", b"b"), (b"a", b"b"), (b"a", b"c")), 1):
        directory = tmp_path / str(node_id) / str(PARTITION)
        directory.mkdir(parents=True)
        batches = [build_batch([Record(at, 0, None, value)], base_offset=at) for at, value in enumerate(values)]
        (directory / f"{0:020}.log").write_bytes(b"".join(batches))
        copies[node_id] = read_copy(tmp_path / str(node_id), PARTITION)
    assert observe(copies[1]).records == [(0, b"a"), (1, b"b")]
    assert [anomaly.detail for anomaly in compare(PARTITION, copies)] == [
        "2 batches on 1, 2 on 3; they part at batch 1"
    ]


def test_records_of_a_later_producer_epoch_are_known_by_their_batches() -> None:
    first = build_batch([Record(0, 0, None, b"a")], producer_id=1, producer_epoch=0, base_sequence=0)
    again = [Record(1, 0, None, b"a"), Record(2, 0, None, b"b")]
    second = build_batch(again, base_offset=1, producer_id=1, producer_epoch=1, base_sequence=0)
    assert offsets_of_later_epochs([first, second]) == {1, 2}
