"""Common output of commands: `--json`, errors, and confirmation.

With --json standard output is one JSON document, or one per line for lists; a failure is `{"error": …}` on standard
error. Field names are stable: fields may be added but are never renamed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flowstone.cli.common.errors import CommandError

JSON_FLAG = "--json"

JsonOutput = Annotated[bool, typer.Option(JSON_FLAG, help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def print_document(document: Mapping[str, Any]) -> None:
    print(encode(document))


def encode(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def confirm(consequence: str) -> None:
    """Ask for confirmation on the terminal. Raises CommandError if it is refused or there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{consequence}; use --yes to confirm")
    print(consequence, file=sys.stderr)
    if not typer.confirm("Go on?", err=True):
        raise CommandError("nothing was changed")
