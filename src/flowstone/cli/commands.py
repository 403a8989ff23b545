"""The typer application with every command except `up`. Each group's module registers its own commands."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Annotated

import typer

from flowstone import __version__
from flowstone.cli.common.connection_options import add_connection_options

# First word of a command -> module that registers it.
GROUPS = {
    "topic": "flowstone.cli.topic.commands",
    "produce": "flowstone.cli.records.produce",
    "consume": "flowstone.cli.records.consume",
    "generate": "flowstone.cli.records.generate",
    "group": "flowstone.cli.group.commands",
    "share": "flowstone.cli.share.commands",
    "queue": "flowstone.cli.queue.work",
    "dlq": "flowstone.cli.dlq.commands",
    "txn": "flowstone.cli.txn.commands",
    "branch": "flowstone.cli.topic.branch",
    "replay": "flowstone.cli.records.replay",
    "explain": "flowstone.cli.records.explain",
    "sql": "flowstone.cli.query.sql",
    "pipeline": "flowstone.cli.pipeline.commands",
    "acl": "flowstone.cli.access.acl",
    "quota": "flowstone.cli.access.quota",
    "secure": "flowstone.cli.access.secure",
    "token": "flowstone.cli.access.token",
    "user": "flowstone.cli.access.user",
    "profile": "flowstone.cli.access.profile",
    "cluster": "flowstone.cli.cluster.commands",
    "log": "flowstone.cli.log_files.commands",
    "backup": "flowstone.cli.backup.backup",
    "restore": "flowstone.cli.backup.restore",
    "doctor": "flowstone.cli.doctor.command",
    "completion": "flowstone.cli.completion",
}

# Maximum width of help on a wider terminal; click's own limit is 80.
HELP_WIDTH_MAX = 120


def build_app(command: str) -> typer.Typer:
    """Return the typer application with only the group that `command` names, or all groups if it names none."""
    app = typer.Typer(
        help="Flowstone: a log-based message broker that speaks Kafka's wire protocol.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"max_content_width": HELP_WIDTH_MAX},
    )
    app.callback()(_root)
    app.command("up")(_up)
    for group in [GROUPS[command]] if command in GROUPS else GROUPS.values():
        import_module(group).register(app)
    add_connection_options(app)
    _list_whole_sentences(app)
    return app


def _list_whole_sentences(app: typer.Typer) -> None:
    """Show each command's first paragraph in lists: without a short help, click truncates it to one line."""
    for command in app.registered_commands:
        paragraph = (inspect.getdoc(command.callback) or "").split("\n\n")[0]
        command.short_help = command.short_help or " ".join(paragraph.split())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _list_whole_sentences(group.typer_instance)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"flowstone {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options before any command."""


def _up() -> None:
    """Run a broker in the foreground: see `flowstone up --help`."""
    # Only listed here: `main` handles this command before typer is imported.
