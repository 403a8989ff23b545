"""Functions at the same time: all end before the first error is raised. Spark is in tests/spark_pipeline/engine."""

from __future__ import annotations

import threading

import pytest

from flowstone.pipeline.engine.together import run_together

TIMEOUT_S = 30


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.util.InheritableThread", threading.Thread)


def test_all_run_at_the_same_time() -> None:
    all_of_them = threading.Barrier(3, timeout=TIMEOUT_S)
    run_together([all_of_them.wait] * 3)
    run_together([])


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    failed, ended = threading.Event(), []

    def fail() -> None:
        failed.set()
        raise ValueError("first")

    def go_on() -> None:
        assert failed.wait(TIMEOUT_S)
        ended.append(1)
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        run_together([fail, go_on, lambda: ended.append(2)])
    assert sorted(ended) == [1, 2]
