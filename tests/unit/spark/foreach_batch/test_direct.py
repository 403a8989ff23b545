"""What a task hands to a driver that writes from its own process; tests/spark/test_exactly_once.py runs it in Spark."""

from __future__ import annotations

import pickle
import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from flowstone.embedded import Broker
from pyspark_flowstone.connections import cluster_of, own_cluster
from pyspark_flowstone.foreach_batch import direct
from pyspark_flowstone.sink import FlowstoneWriter

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture(scope="module")
def broker():
    with Broker() as broker:
        broker.create_topic("out")
        yield broker


def test_a_task_writes_its_rows_and_reports_in_one_row(broker, monkeypatch):
    task = type("Task", (), {"partitionId": lambda self: 0, "getLocalProperty": lambda self, name: None})()
    monkeypatch.setattr("pyspark_flowstone.sink.TaskContext.get", lambda: task)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": "out"}
    run = direct._Task(pickle.dumps(FlowstoneWriter(options, SCHEMA, False)))
    [found] = run(iter([pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})]))
    assert (found.num_rows, found.schema.names) == (1, [direct.REPORT])
    pickle.loads(found.column(0)[0].as_py())
    assert [each.value for each in broker.records("out")] == [b"a", b"b"]


def test_each_thread_of_a_driver_has_a_client_of_its_own_while_it_writes(broker):
    found = []

    def look() -> None:
        with own_cluster(broker.bootstrap):
            found.append(cluster_of(broker.bootstrap))

    with own_cluster(broker.bootstrap):
        mine = cluster_of(broker.bootstrap)
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert cluster_of(broker.bootstrap) is mine
    assert found[0] is not mine
    assert cluster_of(broker.bootstrap) is not mine
