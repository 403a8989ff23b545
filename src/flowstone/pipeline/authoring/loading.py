"""Loads a pipeline's directory: `load(directory)` returns the model, whichever form the pipeline is written in.

The directory is on Python's path while and after `pipeline.py` is imported, so that it can import modules beside it.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from flowstone.pipeline.authoring.declarations import Pipeline
from flowstone.pipeline.authoring.validation import validated
from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import PipelineModel

PYTHON_FILE, YAML_FILE = "pipeline.py", "pipeline.yaml"

_on_path: Path | None = None  # the directory of the last pipeline


def load(directory: Path) -> PipelineModel:
    """Return the model of the pipeline in a directory. Raises PipelineError if it is malformed."""
    directory = directory.resolve()
    if not directory.is_dir():
        raise PipelineError(f"there is no directory {directory}")
    script, document = directory / PYTHON_FILE, directory / YAML_FILE
    if script.exists() and document.exists():
        raise PipelineError(f"{directory} has both {PYTHON_FILE} and {YAML_FILE}; remove one of them")
    if not script.exists() and not document.exists():
        raise PipelineError(
            f"{directory} has neither {PYTHON_FILE} nor {YAML_FILE}; `flowstone pipeline new` writes an example"
        )
    _put_on_path(directory)
    if document.exists():
        from flowstone.pipeline.authoring.yaml_form import read_yaml

        return validated(read_yaml(document))
    return validated(_declared(script).model(directory))


def _put_on_path(directory: Path) -> None:
    """Put the directory on the import path, and forget modules of the pipeline that was loaded before."""
    global _on_path
    if _on_path is not None:
        with suppress(ValueError):  # somebody else took it away
            sys.path.remove(str(_on_path))
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).parent == _on_path:
                del sys.modules[name]
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    _on_path = directory


def _declared(script: Path) -> Pipeline:
    """Return the only Pipeline of a script. Raises PipelineError if it has none or several, or if it fails."""
    module = _import(script)
    pipelines = list({id(each): each for each in vars(module).values() if isinstance(each, Pipeline)}.values())
    if len(pipelines) != 1:
        found = "none" if not pipelines else f"{len(pipelines)} of them"
        raise PipelineError(f"{script} should have one Pipeline, as in `pipeline = Pipeline(...)`, and has {found}")
    return pipelines[0]


def _import(script: Path) -> ModuleType:
    linecache.checkcache(str(script))  # a step's text is its source, which may have changed since the last load
    spec = importlib.util.spec_from_file_location(module_name(script.parent), script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with _no_bytecode():
            spec.loader.exec_module(module)
    except PipelineError as error:
        raise error if error.place else PipelineError(str(error), _place_in(script, error)) from error
    except SyntaxError as error:
        raise PipelineError(f"{error.msg}", Place(error.filename or str(script), error.lineno or 0)) from error
    except Exception as error:
        raise PipelineError(f"{type(error).__name__}: {error}", _place_in(script, error)) from error
    return module


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Keep Python from writing `__pycache__` into the pipeline's directory inside the block."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def module_name(directory: Path) -> str:
    """Return the name under which the script of a directory is imported."""
    return "flowstone_pipeline_" + "".join(each if each.isalnum() else "_" for each in directory.name)


def _place_in(script: Path, error: BaseException) -> Place:
    """Return the script's line in which an exception was raised."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == str(script)]
    return Place(str(script), frames[-1].lineno or 0 if frames else 0)
