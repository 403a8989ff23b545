"""The Spark session of a pipeline: the settings that it needs, below the ones that its declaration gives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How long Spark's process may take to end after its connections have.
ENDING_TIMEOUT_S = 1.0
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
LOGGING = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Sessions of seconds: compiling their code well costs more than it saves.
BRIEF_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Faster than TCP. Executors of a cluster may have temporary directories whose names are too long for a socket.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def settings(model: PipelineModel, master: str = "", *, is_brief: bool = False) -> Mapping[str, str]:
    """Return Spark's settings for a pipeline. Raises PipelineError if the declaration contradicts required ones."""
    from pyspark_flowstone.versions import once_settings

    for name, needed in REQUIRED.items():
        if model.spark.get(name, needed) != needed:
            raise PipelineError(f"spark: {name} is {model.spark[name]}, and pipelines need {needed}: leave it out")
    local = LOCAL_DEFAULTS if (master or model.master or DEFAULT_MASTER).startswith("local") else {}
    java = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {BRIEF_JAVA_OPTIONS if is_brief else ''}"
    java_options = {JAVA_OPTIONS: f"{java} {model.spark.get(JAVA_OPTIONS, '')}".strip()}
    return {**DEFAULTS, **once_settings(), **local, **model.spark, **java_options, **REQUIRED}


def open_session(model: PipelineModel, master: str = "", *, is_brief: bool = False) -> SparkSession:
    """Return a Spark session for the pipeline: the active one if there is one, else a new one.

    `master` overrides the declared one. Under spark-submit both are given by it. `is_brief` is for tests and checks.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Spark's workers would be `python3` of the path otherwise.
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    # They import the modules beside pipeline.py from here.
    paths = [str(model.directory), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if (master or model.master or DEFAULT_MASTER).startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(f"flowstone pipeline {model.name}")
    if "SPARK_ENV_LOADED" not in os.environ:  # set by spark-submit, which has a master of its own
        builder = builder.master(master or model.master or DEFAULT_MASTER)
    for name, value in settings(model, master, is_brief=is_brief).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise PipelineError(f"Spark could not be started: {error}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def ship(model: PipelineModel) -> None:
    """Send the functions of pipeline.py and of the modules beside it to Spark's workers by value.

    The workers cannot import pipeline.py itself, which has a name of its own.
    """
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).parent == model.directory:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def has_ended(spark: SparkSession) -> bool:
    """Return whether Spark's own process, which this one started, has ended or is about to."""
    gateway: Any = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_TIMEOUT_S)
    return process.poll() is not None
