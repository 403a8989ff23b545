"""docs/pipeline-reference.md, generated from the table of fields.

`python -m flowstone.pipeline.authoring.reference FILE` writes it. With `--check` nothing is written, and the exit
status is 1 if the file is not up to date.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from flowstone.pipeline.authoring import fields, parts
from flowstone.pipeline.authoring.declarations import Pipeline
from flowstone.pipeline.authoring.fields import Declaration, Field

HEAD = """# Reference of pipelines

This page lists everything that `pipeline.py` and `pipeline.yaml` can declare; [Pipelines](pipelines.md) is the
introduction. Fields in YAML and parameters in Python have the same names. In Python, `options` are further keyword
arguments, and all functions are imported with `from flowstone.pipeline import ...`. Relative paths are relative to the
pipeline's directory.

This page is generated: `python -m flowstone.pipeline.authoring.reference docs/pipeline-reference.md`.
"""
SOURCES = """Sources and steps are tables in SQL steps, so their names consist of letters, digits and underscores. Each
source, step and sink has a name of its own. In YAML, one of the fields `topic` (or `pattern`), `delta`, `iceberg`,
`parquet` and `files` selects the kind of a source.
"""
STEPS = """A step is a function of DataFrames or an SQL query. Steps may be declared in any order."""
SINKS = "A sink writes the rows of one source or step. Names may also have dots and hyphens."
TRIGGERS = """| YAML | Python | meaning |
|---|---|---|
| `continuous` | | a micro-batch starts when the previous one has ended and records are available |
| `{interval_s: 10}` | `interval(10)` | a micro-batch starts every 10 seconds |
| `once` | `once()` | the run processes all available records, then ends |
"""
LINE_CHARACTERS_MAX = 100


def page() -> str:
    """Return the whole page."""
    parts_of_page = [
        HEAD,
        "## Pipeline",
        _python("Pipeline", Pipeline.__init__),
        "In YAML these are fields of the top level, next to `sources`, `steps`, `sinks` and `tests`.",
        _table(fields.PIPELINE),
        "### Triggers",
        TRIGGERS,
        "## Sources",
        _python("pipeline.source", Pipeline.source),
        SOURCES,
        *_declarations(fields.SOURCES, "source"),
        "## Steps",
        _python("@pipeline.step", Pipeline.step),
        _python("pipeline.sql", Pipeline.sql),
        STEPS,
        _table(fields.STEP),
        "### Expectations",
        _python("expect", parts.expect),
        "In YAML an expectation is either a condition as text, which keeps all rows, or has these fields:",
        _table(fields.EXPECTATION),
        "| otherwise | what happens |\n|---|---|\n"
        + "\n".join(f"| `{action}` | {text} |" for action, text in fields.ACTIONS.items()),
        "## Sinks",
        _python("pipeline.sink", Pipeline.sink),
        SINKS,
        _table((fields.SINK_INPUT,)),
        *_declarations(fields.SINKS, "sink"),
        "## Formats",
        "The format of a topic's values. In YAML it is a name, or a field `format` together with the fields below.",
        *_declarations(fields.FORMATS, "format"),
        "## Tests",
        _python("pipeline.case", Pipeline.case),
        _table(fields.TEST),
    ]
    return "\n\n".join(each.strip("\n") for each in parts_of_page) + "\n"


def _declarations(some: Sequence[Declaration], what: str) -> Iterator[str]:
    for each in some:
        yield f"### The {what} `{each.name}`"
        yield each.help
        yield _python(each.name, each.python)
        if each.fields:
            yield _table(each.fields)


def _python(name: str, function: Any) -> str:
    """Return a function's signature as a block of Python, on one line if it is short."""
    shown: list[str] = []
    is_keyword = False
    for each in inspect.signature(function).parameters.values():
        if each.name in ("self", "function"):
            continue
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            if not any(part.startswith("*") for part in shown):
                shown.append("*")
        shown.append(_parameter(each))
    line = f"{name}({', '.join(shown)})"
    if len(line) > LINE_CHARACTERS_MAX:
        line = "\n".join([f"{name}(", *(f"    {each}," for each in shown), ")"])
    return textwrap.indent(line, "    ")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = ""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        stars = "*"
    elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
        stars = "**"
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    if parameter.default is inspect.Parameter.empty:
        return text
    default = str(parameter.default) if isinstance(parameter.default, StrEnum) else parameter.default
    return f"{text} = {json.dumps(default) if isinstance(default, str) else default}"


def _table(some: Sequence[Field]) -> str:
    rows = [f"| `{each.name}` | {_type(each)} | {each.default} | {_help(each)} |" for each in some]
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _type(field: Field) -> str:
    return ", ".join(f"`{each}`" for each in field.choices) or str(field.type)


def _help(field: Field) -> str:
    return f"required: {field.help}" if field.is_required else field.help


def main(arguments: list[str]) -> int:
    path = Path(arguments[0])
    text = page()
    if "--check" in arguments:
        return int(not path.exists() or path.read_text(encoding="utf-8") != text)
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
