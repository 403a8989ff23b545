"""Checks of a declared pipeline that need neither Spark nor a broker, and the order of its steps.

Both forms pass through `validated`, so that they refuse the same mistakes with the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from flowstone.pipeline.errors import PipelineError, Place
from flowstone.pipeline.model import (
    ERROR,
    RECORD,
    Case,
    ConsoleSink,
    FileSource,
    Format,
    FormatKind,
    PipelineModel,
    Sink,
    Source,
    Step,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    Trigger,
    TriggerKind,
)

NAME_CHARACTERS_MAX = 100
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
# Steps in SQL see sources and steps as tables of these names.
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
TABLE_KINDS = ("delta", "iceberg", "parquet")
FILE_KINDS = ("json", "csv", "parquet", "text")
LETTERS = "letters"  # under this name a case says which dead letters it expects
RESERVED = frozenset({LETTERS, RECORD, ERROR})
STARTING_WORDS = ("earliest", "latest")
INTERVAL_MAX_S = 7 * 24 * 3600.0


def validated(model: PipelineModel) -> PipelineModel:
    """Return the model with its steps in order. Raises PipelineError for the first mistake."""
    _check_pipeline(model)
    _check_names(model)
    model = replace(_with_whole_paths(model), steps=tuple(_in_order(model)))
    for source in model.sources:
        _check_source(source)
    for step in model.steps:
        _check_expectations(step)
    for sink in model.sinks:
        _check_sink(sink, model)
    for case in model.cases:
        _check_case(case, model)
    return model


def _with_whole_paths(model: PipelineModel) -> PipelineModel:
    """Return the model with the paths of files, which are relative to the pipeline's directory, made absolute."""

    def whole(path: str) -> str:
        return path if not path or "://" in path else str(model.directory / path)

    def located(part: Any) -> Any:
        if isinstance(part, FileSource) or (isinstance(part, TableSource | TableSink) and not _is_in_catalog(part)):
            return replace(part, path=whole(part.path))
        if isinstance(part, TopicSource | TopicSink) and _schema_is_file(part.value):
            return replace(part, value=replace(part.value, schema=whole(part.value.schema)))
        return part

    return replace(
        model,
        sources=tuple(replace(each, origin=located(each.origin)) for each in model.sources),
        sinks=tuple(replace(each, target=located(each.target)) for each in model.sinks),
        checkpoints=whole(model.checkpoints),
    )


def _is_in_catalog(table: TableSource | TableSink) -> bool:
    return table.kind == "iceberg" and bool(table.options)


def _schema_is_file(format: Format) -> bool:
    schema = format.schema.strip()
    if format.kind is FormatKind.PROTOBUF:
        return bool(schema)
    return format.kind is FormatKind.AVRO and schema.endswith((".avsc", ".json"))


def is_pipeline_name(name: str) -> bool:
    return len(name) <= NAME_CHARACTERS_MAX and _PIPELINE_NAME.fullmatch(name) is not None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for a name that is close to one of the known ones, else what there is."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(names)}" if names else ""


def _check_pipeline(model: PipelineModel) -> None:
    if not is_pipeline_name(model.name):
        raise PipelineError(
            f"name: {model.name!r} is not 1 to {NAME_CHARACTERS_MAX} letters, digits, dots, hyphens or underscores"
        )
    if not model.bootstrap.strip():
        raise PipelineError("bootstrap: it is empty; give the broker's address, HOST:PORT")
    if model.dead_letters and not _TOPIC_NAME.fullmatch(model.dead_letters):
        raise PipelineError(f"dead_letters: {model.dead_letters!r} is not the name of a topic")
    if not model.sources:
        raise PipelineError("the pipeline has no source; declare the topic, table or files that it reads")
    if not model.sinks and not any(each.expectations for each in model.steps):
        raise PipelineError(
            "the pipeline has neither a sink nor an expectation, so it would do nothing; declare a sink"
        )
    _check_trigger(model.trigger)


def _check_trigger(trigger: Trigger) -> None:
    if trigger.kind is TriggerKind.INTERVAL and not 0 < trigger.interval_s <= INTERVAL_MAX_S:
        raise PipelineError(f"trigger: {trigger.interval_s:g} s is not an interval of more than 0 s and at most 7 days")


def _check_names(model: PipelineModel) -> None:
    seen: dict[str, Source | Step | Sink] = {}
    nodes: Sequence[Source | Step | Sink] = (*model.sources, *model.steps, *model.sinks)
    for each in nodes:
        what, pattern = _kind_of(each), _PIPELINE_NAME if isinstance(each, Sink) else _TABLE_NAME
        if not pattern.fullmatch(each.name) or len(each.name) > NAME_CHARACTERS_MAX:
            allowed = "letters, digits, dots, hyphens" if isinstance(each, Sink) else "letters, digits"
            raise PipelineError(
                f"{what} {each.name!r}: a name has 1 to {NAME_CHARACTERS_MAX} {allowed} and underscores"
                f"{'' if isinstance(each, Sink) else ', and begins with a letter: it is a table in SQL steps'}",
                each.declared_at,
            )
        if each.name in RESERVED:
            raise PipelineError(f"{what} {each.name}: the name is reserved; choose another one", each.declared_at)
        if each.name in seen:
            other = seen[each.name]
            raise PipelineError(
                f"{what} {each.name}: there is a {_kind_of(other)} of this name already; names are unique over "
                "sources, steps and sinks",
                each.declared_at,
            )
        seen[each.name] = each


def _names(*nodes: Sequence[Source | Step | Sink]) -> set[str]:
    return {each.name for some in nodes for each in some}


def _kind_of(node: Source | Step | Sink) -> str:
    return type(node).__name__.lower()


def _in_order(model: PipelineModel) -> Iterator[Step]:
    """Yield each step after its inputs. Raises PipelineError for unknown inputs and for cycles."""
    known = _names(model.sources, model.steps)
    for step in model.steps:
        if not step.inputs:
            raise PipelineError(
                f"step {step.name}: it has no input; its parameters name the sources and steps that it reads",
                step.declared_at,
            )
        for name in step.inputs:
            _check_known(f"step {step.name}: its input", name, known, step.declared_at)
    done = {each.name for each in model.sources}
    left = list(model.steps)
    while left:
        ready = [each for each in left if done.issuperset(each.inputs)]
        if not ready:
            names = ", ".join(each.name for each in left)
            raise PipelineError(f"the steps {names} read each other in a circle", left[0].declared_at)
        yield from ready
        done |= {each.name for each in ready}
        left = [each for each in left if each.name not in done]


def _check_known(what: str, name: str, known: set[str], place: Place | None) -> None:
    if name not in known:
        raise PipelineError(f"{what} {name} is no source or step of the pipeline{nearest(name, known)}", place)


def _check_source(source: Source) -> None:
    origin, what = source.origin, f"source {source.name}"
    if isinstance(origin, TopicSource):
        _check_topics(origin, what, source.declared_at)
    elif origin.kind not in (TABLE_KINDS if isinstance(origin, TableSource) else FILE_KINDS):
        raise PipelineError(f"{what}: there is no kind {origin.kind}", source.declared_at)
    elif not origin.path:
        raise PipelineError(f"{what}: its path is empty", source.declared_at)
    if isinstance(origin, FileSource) and origin.kind != "text" and not origin.schema:
        raise PipelineError(
            f"{what}: a stream of files needs the columns: give its schema as Spark's DDL, as in "
            '"id string, total double"',
            source.declared_at,
        )


def _check_topics(origin: TopicSource, what: str, place: Place | None) -> None:
    if bool(origin.topics) == bool(origin.pattern):
        raise PipelineError(f"{what}: it names either topics or a pattern", place)
    for name in origin.topics:
        if not _TOPIC_NAME.fullmatch(name):
            raise PipelineError(f"{what}: {name!r} is not the name of a topic", place)
    if origin.pattern:
        try:
            re.compile(origin.pattern)
        except re.error as error:
            raise PipelineError(f"{what}: pattern is not a regular expression: {error}", place) from error
    if origin.starting not in STARTING_WORDS and parse_start_ms(origin.starting) is None:
        raise PipelineError(
            f"{what}: starting is {origin.starting!r}, and should be earliest, latest or a time such as "
            "2026-11-01T00:00:00Z",
            place,
        )
    if origin.records_per_batch_max is not None and origin.records_per_batch_max < 1:
        raise PipelineError(f"{what}: records_per_batch_max is {origin.records_per_batch_max}, below 1", place)


def parse_start_ms(text: str) -> int | None:
    """Return a time in ISO 8601 as milliseconds since 1970, UTC unless it says otherwise; None if it is not one."""
    from datetime import UTC, datetime

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def _check_expectations(step: Step) -> None:
    names: set[str] = set()
    for each in step.expectations:
        place = each.declared_at or step.declared_at
        if not each.name or not each.condition.strip():
            raise PipelineError(f"step {step.name}: an expectation needs a name and a condition in SQL", place)
        if each.name in names:
            raise PipelineError(f"step {step.name}: there are two expectations {each.name}", place)
        names.add(each.name)


def _check_sink(sink: Sink, model: PipelineModel) -> None:
    known = _names(model.sources, model.steps)
    _check_known(f"sink {sink.name}: its input", sink.input, known, sink.declared_at)
    target, what = sink.target, f"sink {sink.name}"
    if isinstance(target, TopicSink):
        if not _TOPIC_NAME.fullmatch(target.topic):
            raise PipelineError(f"{what}: {target.topic!r} is not the name of a topic", sink.declared_at)
        if target.topic == model.letters_topic:
            raise PipelineError(f"{what}: {target.topic} is the topic of the dead letters", sink.declared_at)
    elif isinstance(target, TableSink):
        if target.kind not in TABLE_KINDS or not target.path:
            raise PipelineError(f"{what}: a table needs a kind ({', '.join(TABLE_KINDS)}) and a path", sink.declared_at)
    elif isinstance(target, ConsoleSink) and target.rows_max < 1:
        raise PipelineError(f"{what}: rows_max is {target.rows_max}, below 1", sink.declared_at)


def _check_case(case: Case, model: PipelineModel) -> None:
    sources = {each.name for each in model.sources}
    for name in case.given:
        if name not in sources:
            raise PipelineError(
                f"test {case.name}: there is no source {name}{nearest(name, sources)}", case.declared_at
            )
    nodes = _names(model.sources, model.steps, model.sinks) | {LETTERS}
    for name in case.expected:
        if name not in nodes:
            raise PipelineError(
                f"test {case.name}: there is no source, step or sink {name}{nearest(name, nodes)}", case.declared_at
            )
    if not case.expected:
        raise PipelineError(f"test {case.name}: it expects nothing, so it cannot fail", case.declared_at)
    if sum(each.name == case.name for each in model.cases) > 1:
        raise PipelineError(f"there is more than one test {case.name}", case.declared_at)
