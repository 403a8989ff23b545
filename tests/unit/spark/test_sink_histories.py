"""Random kills of an exactly-once query: each micro-batch is visible once, whole. Bugs that are planted are found.

FLOWSTONE_SINK_HISTORIES sets how many histories run, each of which has five kills or more.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from flowstone.embedded import Broker
from pyspark_flowstone import exactly_once_sink
from pyspark_flowstone.exactly_once_sink import ExactlyOnceWriter
from tests.support.spark.sink_histories import PARTITIONS, History

HISTORIES = int(os.environ.get("FLOWSTONE_SINK_HISTORIES", "4"))
SEEDS_MAX = 60  # in which a planted bug must be found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def history(broker: Broker, seed: int) -> History:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=PARTITIONS)
    return History(broker.bootstrap, topic, seed)


def find(broker: Broker) -> str:
    """Return what the first history that shows the bug has to say; fail if none of many does."""
    for seed in range(SEEDS_MAX):
        try:
            history(broker, seed).run()
        except AssertionError as error:
            return str(error)
    pytest.fail(f"{SEEDS_MAX} histories did not show the bug")


def test_each_micro_batch_is_visible_once_whatever_dies(broker: Broker) -> None:
    kills = 0
    for seed in range(HISTORIES):
        found = history(broker, seed)
        found.run()
        kills += found.kills
    assert kills >= 4 * HISTORIES


def test_numbers_that_are_read_before_the_transaction_begins_are_found(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExactlyOnceWriter, "_begin", _beginning_after_reading)
    assert "visible is" in find(broker)


def _beginning_after_reading(writer: ExactlyOnceWriter) -> object:
    name, options = exactly_once_sink.sink_id(writer._options), writer._options
    cluster = exactly_once_sink.cluster_of(options.bootstrap)
    last = {each.metadata: each.offset for each in cluster.stable_offsets(name).values()}
    transaction = cluster.begin_transaction(name, options.transaction_timeout_ms)
    return exactly_once_sink._Begun(transaction.identity, last)


def test_a_commit_without_an_audit_is_found(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactly_once_sink, "_check_written", lambda transaction, counts: None)
    assert "visible is" in find(broker)


def test_a_second_attempt_that_is_let_write_is_found(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ExactlyOnceWriter.write

    def as_a_first_attempt(writer: ExactlyOnceWriter, rows: object) -> object:
        task = exactly_once_sink.TaskContext.get()
        assert task is not None
        monkeypatch.setattr(task, "attemptNumber", lambda: 0)
        return write(writer, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(ExactlyOnceWriter, "write", as_a_first_attempt)
    assert "visible is" in find(broker)


def test_numbers_without_the_id_of_their_query_are_found(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    write_id = exactly_once_sink.ExactlyOnceStreamWriter._write_id

    def without_query(writer: ExactlyOnceWriter, task: object) -> object:
        return "", write_id(writer, task)[1]  # type: ignore[arg-type]

    monkeypatch.setattr(exactly_once_sink.ExactlyOnceStreamWriter, "_write_id", without_query)
    assert "lost" in find(broker)
