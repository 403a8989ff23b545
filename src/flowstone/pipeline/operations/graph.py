"""`graph`: a pipeline as a Mermaid flowchart, from its declaration alone."""

from __future__ import annotations

from collections.abc import Iterator

from flowstone.pipeline.model import (
    Action,
    ConsoleSink,
    FileSource,
    PipelineModel,
    Sink,
    Source,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
)


def mermaid(model: PipelineModel) -> str:
    """Return the flowchart: sources, steps and sinks, and the dead letters where rows can become some."""
    lines = ["flowchart LR"]
    lines += [f'    {_id("source", each.name)}[("{_text(_origin(each))}")]' for each in model.sources]
    for step in model.steps:
        checks = "".join(f"<br/>{_text(f'{each.name}: {each.action}')}" for each in step.expectations)
        lines.append(f'    {_id("step", step.name)}["{_text(step.name)}{checks}"]')
    lines += [f'    {_id("sink", each.name)}[("{_text(_target(each))}")]' for each in model.sinks]
    for step in model.steps:
        lines += [f"    {_node(model, name)} --> {_id('step', step.name)}" for name in step.inputs]
    lines += [f"    {_node(model, each.input)} --> {_id('sink', each.name)}" for each in model.sinks]
    diverting = list(_diverting(model))
    if diverting:
        lines.append(f'    letters[("{_text(f"topic {model.letters_topic}")}")]')
        lines += [f"    {each} -.-> letters" for each in diverting]
    return "\n".join(lines)


def _diverting(model: PipelineModel) -> Iterator[str]:
    for source in model.sources:
        if isinstance(source.origin, TopicSource):
            yield _id("source", source.name)
    for step in model.steps:
        if any(each.action is Action.DIVERT for each in step.expectations):
            yield _id("step", step.name)


def _origin(source: Source) -> str:
    origin = source.origin
    if isinstance(origin, TopicSource):
        return f"{source.name}: topic {', '.join(origin.topics) or origin.pattern}"
    assert isinstance(origin, TableSource | FileSource)
    return f"{source.name}: {origin.kind} {origin.path}"


def _target(sink: Sink) -> str:
    target = sink.target
    if isinstance(target, TopicSink):
        return f"{sink.name}: topic {target.topic}"
    if isinstance(target, ConsoleSink):
        return f"{sink.name}: console"
    assert isinstance(target, TableSink)
    return f"{sink.name}: {target.kind} {target.path}"


def _node(model: PipelineModel, name: str) -> str:
    return _id("source" if model.source(name) else "step", name)


def _id(kind: str, name: str) -> str:
    # Sinks may have dots and hyphens in their names, which would mean something else here.
    return f"{kind}_{''.join(each if each.isalnum() else f'_{ord(each):x}_' for each in name)}"


def _text(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
