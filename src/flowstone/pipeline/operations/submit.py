"""`submit`: the files and the command with which spark-submit runs a pipeline on a cluster.

A bundle is a directory with three files. `main.py` is what spark-submit runs: `flowstone pipeline run`. `pipeline.zip`
has the pipeline's directory, for drivers that run on the cluster. `submit.sh` calls spark-submit with the pipeline's
settings. The machines need Flowstone in their Python, and no jar.
"""

from __future__ import annotations

import os
import shlex
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowstone.pipeline.engine.session import settings
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import FileSource, PipelineModel, TableSink, TableSource

MAIN, ARCHIVE, SCRIPT = "main.py", "pipeline.zip", "submit.sh"
# What the archive is unpacked to beside the driver.
UNPACKED = "pipeline"
CLIENT, CLUSTER = "client", "cluster"
# Settings that have a prefix of a driver's environment on YARN and Kubernetes.
DRIVER_ENVIRONMENTS = ("spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
LEFT_OUT = ("__pycache__", ".flowstone", ".git", ".venv")
FILES_MAX = 10_000
BYTES_MAX = 100 << 20
MAIN_TEXT = """\
# Runs a pipeline under spark-submit; written by `flowstone pipeline submit`.
import sys

from flowstone.cli.main import main

sys.argv = ["flowstone", "pipeline", "run", *sys.argv[1:]]
main()
"""


@dataclass(frozen=True)
class Submission:
    """The options with which a pipeline is submitted."""

    master: str
    deploy_mode: str = CLIENT
    once: bool = False
    python: str = ""  # of the machines; empty: this one
    bootstrap: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()  # further ones of spark-submit
    config: str = ""  # a client's properties file, which the driver reads


def write_bundle(model: PipelineModel, submission: Submission, bundle: Path) -> Path:
    """Write the files of a bundle into a new directory and return its script. Raises PipelineError if it cannot run."""
    _check(model, submission)
    try:
        bundle.mkdir(parents=True)
    except FileExistsError:
        raise PipelineError(f"{bundle} exists already: name a new directory for the bundle") from None
    (bundle / MAIN).write_text(MAIN_TEXT, encoding="utf-8")
    _archive(model.directory, bundle / ARCHIVE)
    script = bundle / SCRIPT
    script.write_text(_script(model, submission), encoding="utf-8")
    script.chmod(0o755)
    return script


def _check(model: PipelineModel, submission: Submission) -> None:
    if submission.master.startswith("local"):
        raise PipelineError(
            f"the master is {submission.master}, which is this machine: use `flowstone pipeline run`, or give --master"
        )
    if submission.deploy_mode == CLUSTER and submission.master.startswith("spark://"):
        raise PipelineError("a standalone cluster does not run drivers in Python: leave out --deploy-mode")
    if not model.checkpoints:
        raise PipelineError(
            "on a cluster the checkpoints have to be in a directory that all machines reach: declare it with "
            "checkpoints"
        )
    if submission.deploy_mode == CLUSTER:
        for name, path in _paths(model):
            if Path(path).is_relative_to(model.directory):
                raise PipelineError(
                    f"{name}: {path} is in the pipeline's directory, which a driver on the cluster has only a copy of: "
                    "give an absolute path that all machines reach, or a URI"
                )


def _paths(model: PipelineModel) -> Iterator[tuple[str, str]]:
    yield "checkpoints", model.checkpoints
    if model.config:
        yield "config", str(model.directory / model.config)  # its secrets are not to be in an archive
    for source in model.sources:
        if isinstance(source.origin, FileSource | TableSource):
            yield f"source {source.name}", source.origin.path
    for sink in model.sinks:
        if isinstance(sink.target, TableSink):
            yield f"sink {sink.name}", sink.target.path


def _archive(directory: Path, file: Path) -> None:
    """Write the pipeline's directory to a zip file. Raises PipelineError if it is more than a pipeline's files."""
    found = [
        path for path in sorted(directory.rglob("*")) if _is_packed(path.relative_to(directory)) and path.is_file()
    ]
    size = sum(path.stat().st_size for path in found)
    if len(found) > FILES_MAX or size > BYTES_MAX:
        raise PipelineError(
            f"{directory} has {len(found)} files of {size >> 20} MiB, and a bundle takes {FILES_MAX} and "
            f"{BYTES_MAX >> 20} MiB: move tables and other data out of the pipeline's directory"
        )
    with zipfile.ZipFile(file, "x", zipfile.ZIP_DEFLATED) as archive:
        for path in found:
            archive.write(path, path.relative_to(directory))


def _is_packed(path: Path) -> bool:
    return not any(part in LEFT_OUT for part in path.parts)


def _script(model: PipelineModel, submission: Submission) -> str:
    """Return the script; it may be run from anywhere, and takes further arguments of `flowstone pipeline run`."""
    python = submission.python or sys.executable
    options = {**settings(model, submission.master), **submission.settings}
    driver_python = sys.executable if submission.deploy_mode == CLIENT else python
    if submission.deploy_mode == CLUSTER:
        options |= {f"{manager}.PYSPARK_PYTHON": python for manager in DRIVER_ENVIRONMENTS}
    words = ["--master", submission.master, "--deploy-mode", submission.deploy_mode, "--name", model.name]
    for name, value in sorted(options.items()):
        words += ["--conf", f"{name}={value}"]
    run = [str(model.directory) if submission.deploy_mode == CLIENT else UNPACKED, "--master", submission.master]
    run += ["--once"] if submission.once else []
    run += ["--bootstrap", submission.bootstrap] if submission.bootstrap else []
    run += ["--config", submission.config] if submission.config else []
    archives = f'--archives "$here/{ARCHIVE}#{UNPACKED}" ' if submission.deploy_mode == CLUSTER else ""
    return "\n".join(
        (
            "#!/bin/sh",
            f"# Runs the pipeline {model.name} on {submission.master}; written by `flowstone pipeline submit`.",
            'here=$(cd "$(dirname "$0")" && pwd)',
            # Not spark.pyspark.python: Spark's JVM finds the format "flowstone" with the Python of its environment.
            f"export PYSPARK_PYTHON={shlex.quote(python)} PYSPARK_DRIVER_PYTHON={shlex.quote(driver_python)}",
            f"exec {_quoted([_spark_submit()])} {_quoted(words)} \\",
            f"  {archives}{_quoted(submission.arguments)} \\" if archives or submission.arguments else "  \\",
            f'  "$here/{MAIN}" {_quoted(run)} "$@"',
            "",
        )
    )


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _spark_submit() -> str:
    """Return Spark's own command: of SPARK_HOME, or of the package pyspark."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        import pyspark

        home = str(Path(pyspark.__file__).parent)
    return str(Path(home) / "bin" / "spark-submit")
