"""The Spark session of a pipeline: the settings that it needs, below the ones that its declaration gives."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
# What exactly-once delivery and the times in tables rely on. A declaration cannot change them.
REQUIRED = {
    "spark.speculation": "false",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.ignoreDecommissionFetchFailure": "false",
    "spark.sql.session.timeZone": "UTC",
}
# What a declaration may change.
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "60s",
    # Micro-batches are small: most of their time is planning, which adaptive execution repeats for each stage.
    "spark.sql.adaptive.enabled": "false",
}
LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def settings(model: PipelineModel, master: str = "") -> Mapping[str, str]:
    """Return Spark's settings for a pipeline. Raises PipelineError if the declaration contradicts required ones."""
    for name, needed in REQUIRED.items():
        if model.spark.get(name, needed) != needed:
            raise PipelineError(f"spark: {name} is {model.spark[name]}, and pipelines need {needed}: leave it out")
    local = LOCAL_DEFAULTS if (master or model.master or DEFAULT_MASTER).startswith("local") else {}
    return {**DEFAULTS, **local, **model.spark, **REQUIRED}


def open_session(model: PipelineModel, master: str = "") -> SparkSession:
    """Return a Spark session for the pipeline: the active one if there is one, else a new one.

    `master` overrides the declared one. Under spark-submit both are given by it.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Spark's workers would be `python3` of the path otherwise.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    builder = SparkSession.builder.appName(f"flowstone pipeline {model.name}")
    if "SPARK_ENV_LOADED" not in os.environ:  # set by spark-submit, which has a master of its own
        builder = builder.master(master or model.master or DEFAULT_MASTER)
    for name, value in settings(model, master).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise PipelineError(f"Spark could not be started: {error}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session
