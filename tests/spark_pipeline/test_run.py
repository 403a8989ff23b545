"""`run`: rows through a pipeline exactly once, dead letters, start positions, checkpoints and the lease."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

from flowstone.pipeline import PipelineError, tables
from flowstone.pipeline.errors import ExpectationFailed, TryLater
from flowstone.pipeline.operations.run import Reporter
from flowstone.pipeline.state import StateStore
from tests.faults.filesystems import tmpfs
from tests.spark_pipeline.shop import HEAD, STEPS, Shop, order

DISK_BYTES = 1 << 20


def state(shop: Shop):
    with StateStore(shop.broker.bootstrap, shop.name) as store:
        return store.load()


def test_rows_arrive_once_and_bad_ones_become_letters(shop: Shop) -> None:
    shop.feed([*map(order, range(50)), order(50, -1.0), b"junk", {"id": 1, "total": "much"}])
    summary = shop.run()
    assert (summary.rows_in, summary.rows_out, summary.letters) == (53, {"out": 50}, 3)
    assert shop.rows() == [order(number) for number in range(50)]
    assert all(each.key == json.loads(each.value)["customer"].encode() for each in shop.out())
    letters = {each.value: {name: value.decode() for name, value in each.headers} for each in shop.out("letters")}
    assert letters.keys() == {b"junk", b'{"id": 1, "total": "much"}', json.dumps(order(50, -1.0)).encode()}
    assert letters[b"junk"]["__connect.errors.stage"] == "VALUE_CONVERTER"
    assert letters[b"junk"]["__connect.errors.topic"] == shop.topic("in")
    diverted = letters[json.dumps(order(50, -1.0)).encode()]
    assert diverted["__connect.errors.exception.message"] == "the row does not meet positive: total > 0"
    shop.feed(map(order, range(60, 70)))
    assert shop.run().rows_in == 10
    assert len(shop.out()) == 60
    runs = state(shop).runs
    assert [(each.number, each.reason, each.rows_in, each.rows_out, each.letters) for each in runs] == [
        (2, "ended", 10, 10, 0),
        (1, "ended", 53, 50, 3),
    ]
    progress = state(shop).progress[shop.name]
    assert (progress.batches, progress.rows_out, progress.expectations) == (1, {"out": 10}, {})


def test_a_micro_batch_that_was_written_is_not_written_again(shop: Shop) -> None:
    """The driver may die between the commit of the transaction and Spark's own."""
    shop.feed(map(order, range(30)))
    shop.run()
    commits = shop.checkpoint() / "commits"
    (commits / "0").unlink()
    (commits / ".0.crc").unlink()
    shop.feed(map(order, range(30, 40)))
    shop.run()
    assert shop.rows() == [order(number) for number in range(40)]


def test_an_expectation_that_fails_the_pipeline_leaves_nothing_behind(shop: Shop) -> None:
    shop.declare(STEPS.replace('otherwise="divert"', 'otherwise="fail"'))
    shop.feed([*map(order, range(5)), order(6, -1.0)])
    failures = []
    with pytest.raises(ExpectationFailed, match=r"positive \(total > 0\): 1 of this micro-batch"):
        shop.run(restarts=5, reporter=Reporter(on_failure=lambda *args: failures.append(args)))
    assert shop.out() == []
    assert [(query, restart_in_s) for query, _message, restart_in_s in failures] == [(shop.name, None)]
    assert state(shop).runs[0].reason.startswith(f"{shop.directory / 'pipeline.py'}:")
    shop.declare(STEPS)
    shop.run()
    assert len(shop.out()) == 5


def test_latest_is_where_the_topic_ended_when_the_pipeline_was_first_run(shop: Shop) -> None:
    shop.declare(STEPS, options=', starting="latest"')
    shop.feed(map(order, range(5)))

    def die(queries: object) -> None:
        raise RuntimeError("the driver died before the first micro-batch")

    with pytest.raises(RuntimeError):
        shop.run(reporter=Reporter(on_start=die))
    shop.feed(map(order, range(5, 12)))
    shop.run()
    assert shop.rows() == [order(number) for number in range(5, 12)]


def test_a_second_run_is_refused(shop: Shop) -> None:
    with StateStore(shop.broker.bootstrap, shop.name) as store:
        first = store.begin_run(None)
        with pytest.raises(TryLater, match=f"pipeline {shop.name} is run already, by process"):
            shop.run()
        first.end("over")
    shop.run()


def test_a_checkpoint_that_is_gone_or_anothers_is_refused(shop: Shop) -> None:
    shop.feed([order(1)])
    shop.run()
    path = shop.checkpoint()
    path.rename(path.parent.parent / "away")
    with pytest.raises(PipelineError, match=r"is no longer at .*, and without it records would be written again"):
        shop.run()
    (path.parent.parent / "away").rename(path)
    (path / "flowstone.json").write_text('{"pipeline": "other", "query": "other.orders", "id": "x"}')
    (path / ".flowstone.json.crc").unlink()
    with pytest.raises(PipelineError, match=r"is the one of query other.orders of pipeline other, not of query"):
        shop.run()
    assert len(shop.out()) == 1


def test_a_query_that_fails_is_restarted_until_it_has_failed_too_often(shop: Shop) -> None:
    shop.declare(
        """
        @pipeline.step
        def broken(orders):
            return orders.selectExpr("id", "raise_error('this never works') x")

        pipeline.sink("out", broken, topic("{name}-out"))
        """
    )
    shop.feed([order(1)])
    failures = []
    with pytest.raises(TryLater, match=r"failed 2 times in a row, the last time: .*this never works"):
        shop.run(restarts=1, reporter=Reporter(on_failure=lambda *args: failures.append(args)))
    assert [restart_in_s for _query, _message, restart_in_s in failures] == [1.0, None]
    assert [each.restart_in_s for each in state(shop).errors] == [-1.0, 1.0]


def test_without_a_broker_it_may_work_later(shop: Shop) -> None:
    shop.declare(STEPS, head=HEAD.replace("{bootstrap}", "127.0.0.1:1"))
    with pytest.raises(TryLater, match=r"127\.0\.0\.1:1"):
        shop.run()


def test_a_run_is_stopped_between_two_micro_batches(shop: Shop) -> None:
    shop.declare(STEPS, options=", records_per_batch_max=10")
    shop.feed(map(order, range(60)))
    summary = shop.run(reporter=Reporter(on_batch=lambda report: shop.stopping.set()))
    assert (summary.reason, summary.rows_in) == ("stopped", len(shop.out()))
    assert summary.rows_in < 60
    shop.stopping.clear()
    shop.run()
    assert shop.rows() == [order(number) for number in range(60)]
    assert state(shop).declaration.nodes.keys() == {"orders", "checked", "out"}


def test_a_topic_that_is_missing_is_named(shop: Shop) -> None:
    shop.declare(STEPS, head=HEAD.replace("{name}-in", "{name}-none"))
    with pytest.raises(
        PipelineError, match=f"pipeline.py:5: source orders: there is no topic {shop.name}-none; create"
    ):
        shop.run()


def test_rows_of_another_schema_become_letters_and_the_job_goes_on(shop: Shop) -> None:
    """Somebody changes the producer under the job: a field gets another type, another one is added."""
    shop.feed(map(order, range(5)))
    shop.run()
    shop.feed([{**order(5), "total": "1.0"}, {**order(6), "added": True}])
    assert shop.run().letters == 1
    assert shop.rows() == [order(number) for number in (0, 1, 2, 3, 4, 6)]


def test_a_sink_that_is_down_is_retried_until_it_is_back(shop: Shop) -> None:
    """A table's directory is a file, as if its disk were away; the topic beside it gets each row once."""
    shop.declare(dedent(STEPS) + '\npipeline.sink("lake", checked, parquet("lake"))\n')
    lake = shop.directory / "lake"
    lake.write_text("not a directory")
    shop.feed(map(order, range(20)))
    failures: list[str] = []

    def failed(query: str, message: str, restart_in_s: float | None) -> None:
        failures.append(message)
        lake.unlink(missing_ok=True)

    shop.run(restarts=3, reporter=Reporter(on_failure=failed))
    assert len(failures) == 1
    assert str(lake) in failures[0]
    assert shop.rows() == [order(number) for number in range(20)]
    assert shop.spark.read.parquet(str(lake)).count() == 20


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.tell() < 2 * DISK_BYTES:
            file.write(b"x" * 4096)


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_full_disk_is_named_and_nothing_is_lost_or_written_twice_once_there_is_space(shop: Shop, kind: str) -> None:
    shop.declare(dedent(STEPS) + f'\npipeline.sink("lake", checked, {kind}("disk/lake"))\n')
    shop.feed(map(order, range(20)))
    failures: list[str] = []
    disk = shop.directory / "disk"
    ballast = disk / "ballast"

    def failed(query: str, message: str, restart_in_s: float | None) -> None:
        failures.append(message)
        ballast.unlink(missing_ok=True)

    with tmpfs(disk, DISK_BYTES):
        fill(ballast)
        shop.run(restarts=3, reporter=Reporter(on_failure=failed))
        assert len(failures) == 1
        assert "No space left on device" in failures[0]
        assert "\n" not in failures[0]
        assert shop.rows() == [order(number) for number in range(20)]
        assert tables.read(shop.spark, kind, str(disk / "lake"), {}).count() == 20
