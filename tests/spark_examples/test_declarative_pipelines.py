"""The example of Spark Declarative Pipelines, run with Spark's own command `spark-pipelines`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer
from scripts.fetch_kafka import FetchError
from scripts.fetch_spark_connect import connect_packages

from flowstone import Broker

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "declarative_pipelines"
RUN_TIMEOUT_S = 400
FLUSH_TIMEOUT_S = 30.0
RECORDS, RECORDS_SMALL = 100, 50  # and the other orders are large

pytestmark = [
    pytest.mark.skipif("FLOWSTONE_SPARK_LONG" not in os.environ, reason="`make spark` runs it"),
    pytest.mark.timeout(1200),
]


def order(number: int) -> dict[str, object]:
    return {"order_id": f"o-{number}", "country": ("DE", "FR", "PT")[number % 3], "amount_cents": number * 200}


def feed(broker: Broker, numbers: range) -> None:
    producer = Producer(broker.client_config)
    for number in numbers:
        producer.produce("orders", json.dumps(order(number)).encode())
    assert producer.flush(FLUSH_TIMEOUT_S) == 0


def run_pipeline(directory: Path, command: str = "run") -> None:
    try:
        packages = connect_packages()
    except FetchError as error:
        pytest.skip(str(error))
    paths = [str(packages), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), command, "--spec", "spark-pipeline.yml"],
        cwd=directory,
        env=environment | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def amounts(directory: Path) -> dict[str, int]:
    files = directory / "spark-warehouse" / "amounts_by_country" / "*.parquet"
    return dict(duckdb.sql(f"SELECT country, amount_cents FROM '{files}'").fetchall())


def test_a_run_fills_its_table_its_view_and_a_topic(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(EXAMPLE, tmp_path / "shop"))
    spec = directory / "spark-pipeline.yml"
    with Broker(mode="process", settings={"num.partitions": 2}) as broker:
        for name in ("orders", "large-orders"):
            broker.create_topic(name)
        text = spec.read_text().replace("/tmp/shop-storage", str(tmp_path / "storage"))
        spec.write_text(text.replace("127.0.0.1:9092", broker.bootstrap))
        run_pipeline(directory, "dry-run")
        feed(broker, range(RECORDS))
        run_pipeline(directory)
        found = [json.loads(each.value or b"") for each in broker.records("large-orders")]
        large = [order(number) for number in range(RECORDS) if number >= RECORDS_SMALL]
        assert sorted(each["order_id"] for each in found) == sorted(str(each["order_id"]) for each in large)
        expected: Counter[str] = Counter()
        for each in map(order, range(RECORDS)):
            expected[str(each["country"])] += int(str(each["amount_cents"]))
        assert amounts(directory) == expected
