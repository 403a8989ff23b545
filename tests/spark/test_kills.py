"""A streaming query's processes killed with -9 in mid micro-batch: nothing is lost, and only its rows may come twice.

Written in transactions, no row may come twice, nor may a reader see a part of a micro-batch.

`kills_query` is the query, and dies where it is told to. It is run until it comes to its end, from the same checkpoint.
In the short run the driver dies once and a worker once; `FLOWSTONE_SPARK_LONG=1` kills both at every step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from flowstone import Broker, read
from flowstone.client import Cluster
from flowstone.types import TopicPartition
from tests.spark.kills_query import BATCH_KILLED, EXACTLY_ONCE_STEPS, STEPS, VICTIMS, Plan

ROOT = Path(__file__).parents[2]
PARTITIONS = (0, 1)
RECORDS = 1600
RECORDS_PER_BATCH = 400
RUNS_MAX = 4  # one for the kill, and those that a busy machine costs: Spark gives a Python process ten seconds to start
RUN_TIMEOUT_S = 240
# Each starts two to four JVMs: one kill of each kind, of another victim. `make spark` runs the others.
SHORT = [("writing", "worker")]
SHORT_EXACTLY_ONCE = [("marked", "driver")]
LONG = [(step, victim) for step in STEPS for victim in VICTIMS if (step, victim) not in SHORT]
LONG_EXACTLY_ONCE = [
    (step, victim) for step in EXACTLY_ONCE_STEPS for victim in VICTIMS if (step, victim) not in SHORT_EXACTLY_ONCE
]

pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)
long_spark = pytest.mark.skipif(
    os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="every step takes minutes: set FLOWSTONE_SPARK_LONG=1"
)


@pytest.fixture
def plan(broker, topic, fill, tmp_path):
    """A topic with records, an empty one for the result, and a query between them."""
    fill(topic, [f"v{number}" for number in range(RECORDS)])
    broker.create_topic(f"{topic}-out", partitions=2)
    return Plan(broker.bootstrap, topic, f"{topic}-out", f"g-{topic}", str(tmp_path), RECORDS_PER_BATCH)


def run(plan: Plan) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with open(Path(plan.directory, "log"), "a") as log:
        command = [sys.executable, str(ROOT / "tests/spark/kills_query.py"), plan.to_json()]
        return subprocess.run(
            command, env=environment, stdout=log, stderr=log, timeout=RUN_TIMEOUT_S, check=False
        ).returncode


def offsets_of(plan: Plan, batch: int) -> dict[TopicPartition, int]:
    """Where a batch ends, as the checkpoint has it; before the first, the beginning."""
    file = plan.checkpoint / "offsets" / str(batch)
    ends = json.loads(file.read_text().splitlines()[-1])[plan.source] if batch >= 0 else {}
    return {TopicPartition(plan.source, each): ends.get(str(each), 0) for each in PARTITIONS}


def committed(plan: Plan) -> dict[TopicPartition, int]:
    with Cluster(plan.bootstrap) as cluster:
        return cluster.committed(plan.group, [TopicPartition(plan.source, each) for each in PARTITIONS])


def assert_group_is_not_ahead(plan: Plan) -> None:
    done = offsets_of(plan, plan.batches_done - 1)
    assert all(offset <= done[partition] for partition, offset in committed(plan).items())


def check(plan: Plan, broker: Broker) -> None:
    """Each record of the source is there; those that are there twice are of the batch that was killed."""
    counts = Counter((each.value or b"").decode() for each in broker.records(plan.sink))
    records = {f"{partition}:{offset}" for partition in PARTITIONS for offset in range(RECORDS // len(PARTITIONS))}
    assert counts.keys() == records
    first, end = offsets_of(plan, BATCH_KILLED - 1), offsets_of(plan, BATCH_KILLED)
    killed = {
        f"{partition.partition}:{offset}" for partition in first for offset in range(first[partition], end[partition])
    }
    repeated = {value for value, count in counts.items() if count > 1}
    assert repeated <= (killed if STEPS[plan.step] else set())
    assert committed(plan) == {TopicPartition(plan.source, each): RECORDS // len(PARTITIONS) for each in PARTITIONS}


def visible(plan: Plan) -> Counter[str]:
    """How often read_committed readers see each value, once no transaction is open any more."""
    table = read(plan.sink, read_committed=True, bootstrap=plan.bootstrap, columns=["value"])
    return Counter((value or b"").decode() for value in table.column("value").to_pylist())


def check_exactly_once(plan: Plan) -> None:
    """Each record of the source is visible once; while the query is interrupted, whole micro-batches are."""
    records = {f"{partition}:{offset}" for partition in PARTITIONS for offset in range(RECORDS // len(PARTITIONS))}
    assert visible(plan) == Counter(records)


def assert_whole_batches(plan: Plan) -> None:
    """The end of the last batch that is visible is the end of a batch in every partition."""
    counts = visible(plan)
    planned = len(list((plan.checkpoint / "offsets").glob("[0-9]*")))
    wholes = []
    for batch in range(-1, planned):
        ends = offsets_of(plan, batch)
        wholes.append(Counter(f"{each.partition}:{offset}" for each in ends for offset in range(ends[each])))
    assert counts in wholes


def kill_and_run_to_the_end(plan: Plan, broker: Broker) -> None:
    """A killed driver ends its run; of a killed worker Spark may get another, or give the query up."""
    statuses = []
    while not statuses or statuses[-1] != 0:
        assert len(statuses) < RUNS_MAX, Path(plan.directory, "log").read_text()[-5000:]
        statuses.append(run(plan))
        assert_group_is_not_ahead(plan)
        if plan.is_exactly_once:
            assert_whole_batches(plan)
    assert plan.mark.exists()
    assert plan.victim == "worker" or statuses[0] == -9
    if plan.is_exactly_once:
        check_exactly_once(plan)
    else:
        check(plan, broker)


@pytest.mark.parametrize(("step", "victim"), SHORT)
def test_a_kill_loses_nothing_and_repeats_only_what_it_interrupted(plan, broker, step, victim):
    kill_and_run_to_the_end(replace(plan, step=step, victim=victim), broker)


@long_spark
@pytest.mark.parametrize(("step", "victim"), LONG)
def test_a_kill_at_any_step_loses_nothing_and_repeats_only_what_it_interrupted(plan, broker, step, victim):
    kill_and_run_to_the_end(replace(plan, step=step, victim=victim), broker)


@pytest.mark.parametrize(("step", "victim"), SHORT_EXACTLY_ONCE)
def test_a_kill_of_an_exactly_once_query_repeats_nothing(plan, broker, step, victim):
    kill_and_run_to_the_end(replace(plan, step=step, victim=victim, is_exactly_once=True), broker)


@long_spark
@pytest.mark.parametrize(("step", "victim"), LONG_EXACTLY_ONCE)
def test_a_kill_of_an_exactly_once_query_at_any_step_repeats_nothing(plan, broker, step, victim):
    kill_and_run_to_the_end(replace(plan, step=step, victim=victim, is_exactly_once=True), broker)
