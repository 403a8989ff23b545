"""kill -9 of the driver and of the broker at random points: each record arrives once, as a row or as a dead letter.

The driver is `flowstone pipeline run` in a process group of its own, with the JVM and Spark's workers. `make test` runs
a few kills; FLOWSTONE_PIPELINE_KILLS=200 runs more, chosen by FLOWSTONE_PIPELINE_SEED.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowstone import Broker
from tests.spark_pipeline.shop import STEPS, Shop, order

KILLS = int(os.environ.get("FLOWSTONE_PIPELINE_KILLS", "2"))
SEED = int(os.environ.get("FLOWSTONE_PIPELINE_SEED", "1"))
RECORDS_PER_KILL = 120
RECORDS_PER_BATCH = 40
START_TIMEOUT_S = 240.0
DELAY_MAX_S = 4.0
DOWNTIME_MAX_S = 2.0


class Driver:
    """A run of the pipeline in a process group of its own."""

    def __init__(self, shop: Shop) -> None:
        command = [sys.executable, "-m", "flowstone.cli", "pipeline", "run", str(shop.directory)]
        self.started = threading.Event()
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if line.startswith("running:"):
                self.started.set()
        self.started.set()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        status = self._process.wait(START_TIMEOUT_S)
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    with Broker(mode="process", settings={"num.partitions": 2}) as broker:
        yield broker


class Model:
    """What was fed, and what must come of it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._number = chance, 0
        self.rows, self.letters = Counter[str](), Counter[bytes]()

    def more(self, count: int) -> Iterator[object]:
        for _ in range(count):
            self._number += 1
            kind = self._chance.random()
            if kind < 0.9:
                row = order(self._number)
                self.rows[str(row["id"])] += 1
                yield row
                continue
            bad = json.dumps(order(self._number, -1.0)).encode() if kind < 0.95 else f"junk {self._number}".encode()
            self.letters[bad] += 1
            yield bad


@pytest.mark.timeout(600 + 120 * KILLS)
def test_each_record_arrives_once_whatever_is_killed(spark: SparkSession, own_broker: Broker, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    shop, model = Shop(spark, own_broker, tmp_path / "shop", "kills"), Model(chance)
    shop.declare(STEPS, options=f", records_per_batch_max={RECORDS_PER_BATCH}")
    driver: Driver | None = None
    try:
        for kill in range(KILLS):
            shop.feed(model.more(RECORDS_PER_KILL))
            driver = driver or Driver(shop)
            assert driver.started.wait(START_TIMEOUT_S), driver.lines
            assert driver.is_alive, driver.lines
            time.sleep(chance.uniform(0, DELAY_MAX_S))
            if kill % 2 == 0:
                own_broker.kill()
                time.sleep(chance.uniform(0, DOWNTIME_MAX_S))
                own_broker.restart()
            else:
                driver.kill()
                driver = None
        if driver is not None:
            running, driver = driver, None
            assert running.stop() == 0, running.lines
    finally:
        if driver is not None:
            driver.kill()
    shop.run(restarts=3)
    assert Counter(str(each["id"]) for each in shop.rows()) == model.rows
    assert Counter(each.value for each in shop.out("letters")) == model.letters
