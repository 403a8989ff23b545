"""Loads a pipeline's directory: `load(directory)` returns the model, whichever form the pipeline is written in."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from flowstone.pipeline.authoring.declarations import Pipeline
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel

PYTHON_FILE, YAML_FILE = "pipeline.py", "pipeline.yaml"


def load(directory: Path) -> PipelineModel:
    """Return the model of the pipeline in a directory. Raises PipelineError if it is malformed."""
    script = directory / PYTHON_FILE
    if not script.exists():
        raise PipelineError(f"{directory} has neither {PYTHON_FILE} nor {YAML_FILE}")
    spec = importlib.util.spec_from_file_location(f"flowstone_pipeline_{directory.name}", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    pipelines = [each for each in vars(module).values() if isinstance(each, Pipeline)]
    if len(pipelines) != 1:
        raise PipelineError(f"{script} must have one Pipeline, and has {len(pipelines)}")
    return pipelines[0].model(directory)
