"""The settings of a pipeline's Spark session: on one machine, on a cluster, and what a declaration says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flowstone.pipeline.engine.session import settings
from flowstone.pipeline.model import PipelineModel

SOCKETS = "spark.python.unix.domain.socket.enabled"
MODEL = PipelineModel("p", Path(), (), (), ())


def test_workers_send_over_unix_sockets_on_this_machine_only() -> None:
    assert settings(MODEL)[SOCKETS] == "true"
    assert SOCKETS not in settings(MODEL, "spark://master:7077")
    assert settings(replace(MODEL, spark={SOCKETS: "false"}))[SOCKETS] == "false"
