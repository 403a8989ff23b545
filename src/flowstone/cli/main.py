"""The `flowstone` command: runs the requested command and prints one sentence if it fails.

`up` is parsed by argparse and never imports typer, which would take as long as starting the broker. The other commands
use typer (`commands`).
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import NoReturn

from flowstone.cli.common.errors import EXIT_CLOSED_PIPE, EXIT_FAILURE, EXIT_INTERRUPTED, CommandError
from flowstone.cli.common.standard_output import OutputClosed, guard_output
from flowstone.errors import FlowstoneError

SENTENCE_CHARACTERS_MAX = 2000  # maximum length of an error message, which may contain a long value
COMPLETE_COMMAND = "__complete"  # called by shells, see `completion`


def main() -> NoReturn:
    """The entry point of the installed script."""
    try:
        guard_output()
        status = _run_and_flush(sys.argv[1:])
    except OutputClosed:
        status = EXIT_CLOSED_PIPE
    except FlowstoneError as error:
        status = _fail(str(error))
        if isinstance(error, CommandError):
            status = error.exit_status
    except UnicodeEncodeError as error:
        # Bytes of an argument that are not UTF-8 are kept by Python as surrogates, which no broker takes.
        if not any(_is_undecodable(each) for each in sys.argv):
            raise
        status = _fail(f"an argument is not UTF-8 text: {error.object!r}")
    except OSError as error:
        status = _fail(f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    sys.exit(status)


def _run_and_flush(arguments: list[str]) -> int:
    """Run a command; return its exit status once everything it printed has been written."""
    try:
        status = _run(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    sys.stdout.flush()
    return status


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["up"]:
        from flowstone.cli.up.command import run_up

        return run_up(arguments[1:])
    if arguments[:1] == [COMPLETE_COMMAND]:
        from flowstone.cli.completion import candidates

        print("\n".join(candidates(arguments[1:])))
        return 0
    from flowstone.cli.commands import build_app

    build_app(arguments[0] if arguments else "")(arguments, prog_name="flowstone")
    return 0


def _fail(sentence: str) -> int:
    """Print why the command failed, on one line even if a value contains line breaks; return the exit status."""
    if len(sentence) > SENTENCE_CHARACTERS_MAX:
        half = SENTENCE_CHARACTERS_MAX // 2
        sentence = f"{sentence[:half]} … {sentence[-half:]}"
    # All commands share this flag, and a command may fail before it has parsed it.
    if "--json" in sys.argv[1:]:
        said = json.dumps({"error": sentence}, ensure_ascii=False)
    else:
        said = "flowstone: " + "".join(each if each.isprintable() else _escaped(each) for each in sentence)
    with suppress(BrokenPipeError):
        print(said, file=sys.stderr)
    return EXIT_FAILURE


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _is_undecodable(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)
