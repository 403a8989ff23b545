"""Shell completion: `flowstone completion bash|zsh|fish` prints a script for the shell to load.

The shell passes the words typed so far, the last one incomplete, and gets the possible completions. Names of topics and
groups come from the broker if it answers quickly. If there are no candidates, the shell completes file names itself.
"""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any

import typer

from flowstone.cli.common.errors import CommandError

NAMES_TIMEOUT_S = 0.5

_SCRIPTS = {
    "bash": """\
_flowstone() {
    local IFS=$'\\n'
    COMPREPLY=($(flowstone __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _flowstone flowstone""",
    "zsh": """\
#compdef flowstone
_flowstone() {
    local -a found
    found=("${(@f)$(flowstone __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
compdef _flowstone flowstone""",
    "fish": """\
function __flowstone_complete
    set -l words (commandline -opc) (commandline -ct)
    flowstone __complete $words[2..-1] 2>/dev/null
end
complete -c flowstone -a "(__flowstone_complete)\"""",
}


def register(app: typer.Typer) -> None:
    app.command("completion")(completion)


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(_SCRIPTS)}.")]) -> None:
    """Print a script that completes commands, options, topics and groups: load it in your shell's start file."""
    if shell not in _SCRIPTS:
        raise CommandError(f"there is no completion for {shell}: choose one of {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[shell])


def candidates(words: list[str]) -> list[str]:
    """Return the possible completions of the last word."""
    *before, unfinished = words or [""]
    found = _options(before[1:]) if before[:1] == ["up"] else _words(before, unfinished)
    return sorted(word for word in found if word.startswith(unfinished))


def _options(before: list[str]) -> list[str]:
    """Return the options of `up`, which typer does not know."""
    from flowstone.cli.up.command import build_parser

    # An option's value can be anything.
    taken = [action for action in build_parser()._actions if before[-1:] and before[-1] in action.option_strings]
    if taken and taken[0].nargs != 0:
        return list(taken[0].choices or ())
    return [option for action in build_parser()._actions for option in action.option_strings if option[:2] == "--"]


def _words(before: list[str], unfinished: str) -> list[str]:
    from flowstone.cli.commands import GROUPS, build_app

    if not before:
        return ["--help", "--version"] if unfinished.startswith("-") else ["up", *GROUPS]
    if before[0] not in GROUPS:
        return []
    command: Any = typer.main.get_command(build_app(before[0])).commands[before[0]]  # type: ignore[attr-defined]
    rest = before[1:]
    if hasattr(command, "commands"):
        if not rest:
            return list(command.commands)
        command, rest = command.commands.get(rest[0]), rest[1:]
    if command is None or _awaits_value(command, rest):
        return []
    if unfinished.startswith("-"):
        return [option for parameter in command.params for option in parameter.opts if option[:2] == "--"] + ["--help"]
    arguments = [word for at, word in enumerate(rest) if word[:1] != "-" and not _awaits_value(command, rest[:at])]
    names = [parameter.metavar for parameter in command.params if parameter.param_type_name == "argument"]
    match names[len(arguments) : len(arguments) + 1]:
        case ["TOPIC" | "GROUP" as kind]:
            return _names(kind, rest)
        case ["SHELL"]:
            return list(_SCRIPTS)
        case _:
            return []


def _awaits_value(command: Any, rest: list[str]) -> bool:
    named = [parameter for parameter in command.params if rest and rest[-1] in parameter.opts]
    return bool(named) and not named[0].is_flag


def _names(kind: str, rest: list[str]) -> list[str]:
    """Return all names of the kind from the broker; none if it does not answer immediately."""
    from confluent_kafka.admin import AdminClient

    from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, client_config, split_address

    bootstrap = os.environ.get("FLOWSTONE_BOOTSTRAP", DEFAULT_BOOTSTRAP)
    if "--bootstrap" in rest[:-1]:
        bootstrap = rest[rest.index("--bootstrap") + 1]
    try:
        socket.create_connection(split_address(bootstrap.split(",")[0]), NAMES_TIMEOUT_S).close()
        admin = AdminClient(client_config(bootstrap))
        if kind == "TOPIC":
            return list(admin.list_topics(timeout=NAMES_TIMEOUT_S).topics)
        listed = admin.list_consumer_groups(request_timeout=NAMES_TIMEOUT_S).result(NAMES_TIMEOUT_S)
        return [group.group_id for group in listed.valid]
    except Exception:  # any error: completion must not print at the prompt
        return []
