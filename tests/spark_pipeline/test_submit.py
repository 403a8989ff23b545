"""A pipeline on a standalone cluster with two workers, of which an executor and then a worker are killed.

For `make spark`. The driver and the executors are processes of their own, started by `flowstone pipeline submit`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from flowstone import Broker
from tests.spark_pipeline.cluster import StandaloneCluster, standalone_cluster
from tests.spark_pipeline.shop import Shop, order

pytestmark = [
    pytest.mark.skipif("FLOWSTONE_SPARK_LONG" not in os.environ, reason="minutes: set FLOWSTONE_SPARK_LONG=1"),
    pytest.mark.timeout(900),
]

ORDERS = 2_000
RUN_TIMEOUT_S = 600
HEAD = """
    from flowstone.pipeline import *
    import prices

    pipeline = Pipeline("{name}", bootstrap="{bootstrap}", checkpoints="checkpoints")
    orders = topic("{name}-in", value=json("id string, customer string, total double"), records_per_batch_max=250)
    pipeline.source("orders", orders)
"""
STEPS = """
    @pipeline.step(expect=[expect("positive", "total > 0", otherwise="divert")])
    def checked(orders):
        return orders.withColumn("total", prices.gross("total"))

    pipeline.sink("out", checked, topic("{name}-out", key="customer"))
    pipeline.sink("table", checked, delta("lake/orders"))
"""
PRICES = """
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType

@udf(DoubleType())
def gross(total):
    return total * 2
"""


@pytest.fixture
def submitted(broker: Broker, tmp_path: Path) -> Shop:
    shop = Shop(None, broker, tmp_path / "shop", f"submitted-{time.time_ns()}")  # type: ignore[arg-type]
    shop.declare(STEPS, head=HEAD)
    (shop.directory / "prices.py").write_text(PRICES)
    shop.feed([*map(order, range(ORDERS)), b"junk"])
    return shop


def test_each_row_arrives_once_although_an_executor_and_a_worker_are_killed(submitted: Shop, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        command = ["pipeline", "submit", str(submitted.directory), "--master", cluster.address, "--once"]
        settings = ["--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"]
        log = tmp_path / "submit.log"
        with log.open("w") as file:
            run = subprocess.Popen(
                [sys.executable, "-m", "flowstone.cli", *command, *settings], stdout=file, stderr=subprocess.STDOUT
            )
        try:
            _wait(lambda: table_rows(submitted) >= ORDERS // 10, run, log)
            assert kill_executors(cluster, 0)
            before = table_rows(submitted)
            _wait(lambda: table_rows(submitted) > before, run, log)
            assert kill_executors(cluster, 1)
            cluster.workers[1].kill()
            assert run.wait(RUN_TIMEOUT_S) == 0, log.read_text()
        finally:
            run.kill()
    expected = [order(number, 2.0) for number in range(ORDERS)]
    assert submitted.rows() == expected
    table = deltalake.DeltaTable(str(submitted.directory / "lake/orders")).to_pyarrow_table()
    assert sorted(table.to_pylist(), key=lambda row: str(row["id"])) == expected
    assert [each.value for each in submitted.out("letters")] == [b"junk"]
    assert f"{ORDERS + 1} rows read" in log.read_text()


def table_rows(shop: Shop) -> int:
    path = shop.directory / "lake/orders"
    return deltalake.DeltaTable(str(path)).count() if (path / "_delta_log").is_dir() else 0


def kill_executors(cluster: StandaloneCluster, worker: int) -> list[int]:
    """Kill the executors of a worker, whatever they do just then, and return their ids."""
    found = cluster.executors(worker)
    for each in found:
        os.kill(each, signal.SIGKILL)
    return found


def _wait(is_so: Callable[[], bool], run: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not is_so():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
