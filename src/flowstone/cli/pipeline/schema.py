"""`flowstone pipeline schema`: prints the JSON Schema of pipeline.yaml."""

from __future__ import annotations

import json

import typer


def register(app: typer.Typer) -> None:
    app.command("schema")(schema)


def schema() -> None:
    """Print the JSON Schema of pipeline.yaml, with which editors complete and check the file."""
    from flowstone.pipeline.authoring.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
