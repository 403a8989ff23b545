"""Fingerprints of a pipeline: what a run stores of its declaration, so that `plan` can say later what has changed.

A step's code counts without its comments, layout and decorators. The functions that it calls count as those of the
modules beside the pipeline, or not at all. Tests and places of declarations do not count.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent
from typing import Any

from flowstone import __version__
from flowstone.pipeline.authoring.loading import PYTHON_FILE
from flowstone.pipeline.engine.queries import Query
from flowstone.pipeline.model import Format, FormatKind, PipelineModel, Sink, Source, Step
from flowstone.pipeline.state import Declaration, DeclaredNode, DeclaredQuery

# Settings of Spark that a checkpoint keeps from its first run.
CHECKPOINT_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stateStore.providerClass")
HASH_CHARACTERS = 16
# The name of the node that stands for the modules beside pipeline.py.
MODULES = "(modules)"


def declared_nodes(model: PipelineModel) -> Mapping[str, DeclaredNode]:
    """Return the declaration of each source, step and sink, by name."""
    nodes = {each.name: _source(each) for each in model.sources}
    nodes |= {each.name: _step(each) for each in model.steps}
    nodes |= {each.name: _sink(each) for each in model.sinks}
    modules = sorted(each for each in model.directory.glob("*.py") if each.name != PYTHON_FILE)
    if modules:
        nodes[MODULES] = DeclaredNode("modules", (), {each.name: fingerprint(_module(each)) for each in modules})
    return nodes


def spec_hash(model: PipelineModel) -> str:
    """Return a hash of everything that can change what the pipeline writes."""
    nodes = {name: asdict(node) for name, node in declared_nodes(model).items()}
    settings = [model.letters_topic, str(model.delivery), dict(model.spark)]
    return fingerprint([nodes, settings])


def declaration(model: PipelineModel, queries: Sequence[Query]) -> Declaration:
    """Return the declaration to store for a run."""
    import pyspark

    return Declaration(
        spec_hash=spec_hash(model),
        nodes=declared_nodes(model),
        queries={
            each.name: DeclaredQuery(tuple(source.name for source in each.sources), _streamed(model, each))
            for each in queries
        },
        settings={name: model.spark[name] for name in CHECKPOINT_SETTINGS if name in model.spark},
        flowstone=__version__,
        spark=pyspark.__version__,
    )


def _streamed(model: PipelineModel, query: Query) -> tuple[str, ...]:
    """Return the steps of a query's streaming plan, by which its state was computed; none if its root is a source."""
    wanted = {query.root}
    for step in reversed(model.steps):
        if step.name in wanted:
            wanted |= set(step.inputs)
    return tuple(each.name for each in model.steps if each.name in wanted)


def fingerprint(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARACTERS]


def _source(source: Source) -> DeclaredNode:
    values = asdict(source.origin)
    parts = {name: fingerprint(value) for name, value in values.items()} | _schema_file(source.origin)
    return DeclaredNode("source", (), {"class": type(source.origin).__name__, **parts})


def _step(step: Step) -> DeclaredNode:
    expectations = [[each.name, each.condition, each.action] for each in step.expectations]
    code = _sql(step.text) if step.function is None else _function(step.text)
    return DeclaredNode("step", step.inputs, {"code": fingerprint(code), "expectations": fingerprint(expectations)})


def _sink(sink: Sink) -> DeclaredNode:
    values = asdict(sink.target)
    parts = {name: fingerprint(value) for name, value in values.items()} | _schema_file(sink.target)
    return DeclaredNode("sink", (sink.input,), {"class": type(sink.target).__name__, **parts})


def _schema_file(part: object) -> dict[str, str]:
    """Return the fingerprint of the file that a format names as its schema, if it does."""
    format = getattr(part, "value", None)
    if not isinstance(format, Format) or format.kind not in (FormatKind.AVRO, FormatKind.PROTOBUF):
        return {}
    try:
        data = Path(format.schema).read_bytes()
    except (OSError, ValueError):  # the schema itself, or none
        return {}
    return {"schema file": hashlib.sha256(data).hexdigest()[:HASH_CHARACTERS]}


def _module(path: Path) -> str:
    try:
        return _code(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SyntaxError):
        return path.name


def _function(text: str) -> str:
    """Return the code of a function without its decorators, which declare other parts."""
    try:
        tree = ast.parse(dedent(text))
    except SyntaxError:  # a lambda in the middle of a line
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
    return _code(tree)


def _code(tree: ast.Module) -> str:
    """Return the code without what does not change its results."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _sql(text: str) -> str:
    lines = (line.partition("--")[0] if "'" not in line else line for line in text.splitlines())
    return " ".join(" ".join(lines).split())
