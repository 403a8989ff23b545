"""What a bundle for spark-submit has, and what is refused before one is written."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from flowstone.pipeline import Pipeline, PipelineError, delta, json, topic
from flowstone.pipeline.authoring.validation import validated
from flowstone.pipeline.model import PipelineModel
from flowstone.pipeline.operations import submit
from flowstone.pipeline.operations.submit import Submission, write_bundle

MASTER = "spark://master:7077"


def declared(
    directory: Path, *, table: str = "/shared/orders", checkpoints: str = "/shared/checkpoints", config: str = ""
) -> PipelineModel:
    directory.mkdir(exist_ok=True)
    settings = {"spark.executor.memory": "2g", "spark.x": "a b'c"}
    pipeline = Pipeline("shop", checkpoints=checkpoints, config=config, spark=settings)
    pipeline.source("orders", topic("orders", value=json("id string")))
    pipeline.sink("table", "orders", delta(table))
    return validated(pipeline.model(directory))


def test_a_bundle_has_the_pipelines_files_and_a_script(tmp_path: Path) -> None:
    model = declared(tmp_path / "shop")
    for name in ("pipeline.py", "steps/prices.sql", ".flowstone/checkpoints/x", "__pycache__/pipeline.pyc"):
        path = model.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    script = write_bundle(model, Submission("yarn", "cluster", python="/opt/python"), tmp_path / "bundle")
    with zipfile.ZipFile(tmp_path / "bundle/pipeline.zip") as archive:
        assert archive.namelist() == ["pipeline.py", "steps/prices.sql"]
    text = script.read_text()
    assert "--master yarn --deploy-mode cluster --name shop" in text
    assert '--archives "$here/pipeline.zip#pipeline"' in text
    assert "--conf spark.executor.memory=2g" in text
    assert "export PYSPARK_PYTHON=/opt/python PYSPARK_DRIVER_PYTHON=/opt/python\n" in text
    assert "--conf spark.kubernetes.driverEnv.PYSPARK_PYTHON=/opt/python" in text
    assert "--conf spark.stage.maxConsecutiveAttempts=1" in text
    assert """--conf 'spark.x=a b'"'"'c'""" in text
    assert text.endswith('"$here/main.py" pipeline --master yarn "$@"\n')
    assert "127.0.0.1" not in text
    compile((tmp_path / "bundle/main.py").read_text(), "main.py", "exec")


def test_a_driver_on_this_machine_uses_the_directory_itself(tmp_path: Path) -> None:
    model = declared(tmp_path / "shop", table="lake/orders", checkpoints="checkpoints")
    script = write_bundle(model, Submission(MASTER, once=True, settings={"spark.x": "y"}), tmp_path / "bundle")
    text = script.read_text()
    assert text.endswith(f'"$here/main.py" {tmp_path}/shop --master {MASTER} --once "$@"\n')
    assert "--archives" not in text
    assert "--conf spark.x=y" in text
    assert f"PYSPARK_DRIVER_PYTHON={sys.executable}\n" in text


def test_a_bundle_names_the_properties_file_and_does_not_contain_it(tmp_path: Path) -> None:
    secrets = tmp_path / "client.properties"
    secrets.write_text("sasl.password=canary-secret")
    model = declared(tmp_path / "shop", config=str(secrets))
    (model.directory / "pipeline.py").write_text("")
    write_bundle(model, Submission("yarn", "cluster", config=str(secrets)), tmp_path / "bundle")
    texts = {each.name: each.read_bytes() for each in (tmp_path / "bundle").iterdir()}
    assert any(f"--config {secrets}".encode() in text for text in texts.values())
    assert not any(b"canary-secret" in text for text in texts.values())


@pytest.mark.parametrize(
    ("change", "submission", "message"),
    [
        ({}, Submission("local[2]"), "which is this machine: use `flowstone pipeline run`"),
        ({}, Submission(MASTER, "cluster"), "a standalone cluster does not run drivers in Python"),
        ({"checkpoints": ""}, Submission(MASTER), "declare it with checkpoints"),
        ({"table": "lake/orders"}, Submission("yarn", "cluster"), "sink table: .* is in the pipeline's directory"),
        ({"checkpoints": "here"}, Submission("yarn", "cluster"), "checkpoints: .* is in the pipeline's directory"),
        ({"config": "my.properties"}, Submission("yarn", "cluster"), "config: .* is in the pipeline's directory"),
    ],
)
def test_what_cannot_run_is_refused_and_nothing_is_written(
    tmp_path: Path, change: dict[str, str], submission: Submission, message: str
) -> None:
    model = declared(tmp_path / "shop", **change)
    with pytest.raises(PipelineError, match=message):
        write_bundle(model, submission, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_directory_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="exists already"):
        write_bundle(declared(tmp_path / "shop"), Submission(MASTER), tmp_path)


def test_a_directory_full_of_data_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(declared(tmp_path / "shop"))
    for number in range(4):
        (model.directory / f"{number}.parquet").write_text("")
    monkeypatch.setattr(submit, "FILES_MAX", 3)
    with pytest.raises(PipelineError, match="has 4 files of 0 MiB, and a bundle takes 3"):
        write_bundle(model, Submission("yarn", "cluster"), tmp_path / "bundle")
