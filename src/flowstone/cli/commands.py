"""Every command but `up`, as typer knows them. Each group's module registers its own."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from flowstone import __version__

# The first word of a command -> the module that registers it.
GROUPS = {
    "topic": "flowstone.cli.topics",
    "produce": "flowstone.cli.produce",
    "consume": "flowstone.cli.consume",
    "generate": "flowstone.cli.generate",
    "group": "flowstone.cli.groups",
    "branch": "flowstone.cli.branch",
    "replay": "flowstone.cli.replay",
    "explain": "flowstone.cli.explain",
    "sql": "flowstone.cli.sql",
    "cluster": "flowstone.cli.cluster",
    "log": "flowstone.cli.log_files",
    "backup": "flowstone.cli.backup",
    "restore": "flowstone.cli.restore",
    "doctor": "flowstone.cli.doctor",
    "completion": "flowstone.cli.completion",
}


def build_app(command: str) -> typer.Typer:
    """Only the group that `command` names is loaded; all of them if it names none."""
    app = typer.Typer(
        help="Flowstone: a log-based message broker that speaks Kafka's wire protocol.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )
    app.callback()(_root)
    app.command("up")(_up)
    for group in [GROUPS[command]] if command in GROUPS else GROUPS.values():
        import_module(group).register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flowstone {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before any command."""


def _up() -> None:
    """Run a broker in the foreground: see `flowstone up --help`."""
    # Here to be listed: `main` takes this command before typer is loaded.
