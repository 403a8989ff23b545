"""The declaration of a pipeline in the form in which it is stored: fingerprints of everything that can change.

Comments and layout do not count: of Python the syntax tree is compared, of SQL the words.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import dedent
from typing import Any

from flowstone.pipeline.authoring.loading import PYTHON_FILE
from flowstone.pipeline.engine.queries import Query
from flowstone.pipeline.model import (
    Expectation,
    FileSource,
    Format,
    PipelineModel,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
    TopicSource,
)
from flowstone.pipeline.state import Declaration, DeclaredNode, DeclaredQuery

MODULES = "(modules)"
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def declaration_of(model: PipelineModel, queries: Sequence[Query]) -> Declaration:
    """Return what is stored of a pipeline with these queries."""
    import pyspark

    import flowstone

    nodes = nodes_of(model)
    found = {
        each.name: DeclaredQuery(tuple(source.name for source in each.sources), _streamed(model, each))
        for each in queries
    }
    settings = {name: value for name, value in model.spark.items() if name == SHUFFLE_PARTITIONS}
    return Declaration(spec_hash(model), nodes, found, settings, flowstone.__version__, pyspark.__version__)


def spec_hash(model: PipelineModel) -> str:
    return _fingerprint({name: asdict(each) for name, each in sorted(nodes_of(model).items())})


def nodes_of(model: PipelineModel) -> dict[str, DeclaredNode]:
    found = {each.name: DeclaredNode("source", (), _source_parts(each)) for each in model.sources}
    found |= {each.name: DeclaredNode("step", each.inputs, _step_parts(each)) for each in model.steps}
    found |= {each.name: DeclaredNode("sink", (each.input,), _sink_parts(each)) for each in model.sinks}
    modules = sorted(each for each in model.directory.glob("*.py") if each.name != PYTHON_FILE)
    if modules:
        found[MODULES] = DeclaredNode("modules", (), {each.name: _fingerprint(_code_of(each)) for each in modules})
    return found


def _streamed(model: PipelineModel, query: Query) -> tuple[str, ...]:
    """Return the steps of a query's streaming plan, which state depends on; none if its root is a source."""
    wanted = {query.root}
    for step in reversed(model.steps):
        if step.name in wanted:
            wanted |= set(step.inputs)
    return tuple(each.name for each in model.steps if each.name in wanted)


def _source_parts(source: Source) -> dict[str, str]:
    origin = source.origin
    if isinstance(origin, TopicSource):
        return {
            "topics": _fingerprint([sorted(origin.topics), origin.pattern]),
            "format": _format(origin.value),
            "starting": _fingerprint(origin.starting),
            "options": _fingerprint([dict(origin.options), origin.records_per_batch_max]),
        }
    schema = {"schema": _fingerprint(origin.schema)} if isinstance(origin, FileSource) else {}
    return {"place": _fingerprint([origin.kind, origin.path]), "options": _fingerprint(dict(origin.options)), **schema}


def _step_parts(step: Step) -> dict[str, str]:
    code = " ".join(step.text.split()) if step.function is None else _function(step.text)
    return {"code": _fingerprint(code), "expectations": _fingerprint(_expectations(step.expectations))}


def _expectations(found: Iterable[Expectation]) -> list[list[str]]:
    return [[each.name, each.condition, str(each.action)] for each in found]


def _sink_parts(sink: Sink) -> dict[str, str]:
    target = sink.target
    if isinstance(target, TopicSink):
        return {"topic": _fingerprint(target.topic), "format": _format(target.value), "key": _fingerprint(target.key)}
    if isinstance(target, TableSink):
        return {
            "place": _fingerprint([target.kind, target.path]),
            "key": _fingerprint(target.keys),
            "options": _fingerprint([target.partition_by, dict(target.options)]),
        }
    return {"place": "console"}


def _format(format: Format) -> str:
    return _fingerprint([str(format.kind), format.schema, format.message, format.registry, dict(format.options)])


def _function(text: str) -> str:
    """Return the syntax tree of a function's source without its decorators, which declare other parts."""
    try:
        tree = ast.parse(dedent(text))
    except SyntaxError:
        return text
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            each.decorator_list = []
    return ast.dump(_without_docstrings(tree))


def _code_of(path: Path) -> str:
    try:
        return ast.dump(_without_docstrings(ast.parse(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError):
        return path.name


def _without_docstrings(tree: ast.AST) -> ast.AST:
    for each in ast.walk(tree):
        body = getattr(each, "body", None)
        if (
            isinstance(each, ast.FunctionDef | ast.ClassDef | ast.Module)
            and body
            and ast.get_docstring(each) is not None
        ):
            each.body = body[1:] or [ast.Pass()]
    return tree


def _fingerprint(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
