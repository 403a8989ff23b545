"""The `flowstone` command: finds the command that was asked for and says in one sentence why it failed.

`up` is parsed by argparse and never loads typer, which would cost as much as starting the broker. The other commands
are typer's (`commands`).
"""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from flowstone.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED
from flowstone.errors import FlowstoneError

COMPLETE_COMMAND = "__complete"  # what shells ask, see `completion`; not for people


def main() -> NoReturn:
    """The entry point of the installed script."""
    try:
        status = _run(sys.argv[1:])
    except FlowstoneError as error:
        # Whichever command it was: the flag is the same for all, and it may have failed before reading it.
        as_json = "--json" in sys.argv[1:]
        print(
            json.dumps({"error": str(error)}, ensure_ascii=False) if as_json else f"flowstone: {error}", file=sys.stderr
        )
        status = EXIT_FAILURE
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["up"]:
        from flowstone.cli.up import run_up

        return run_up(arguments[1:])
    if arguments[:1] == [COMPLETE_COMMAND]:
        from flowstone.cli.completion import candidates

        print("\n".join(candidates(arguments[1:])))
        return 0
    from flowstone.cli.commands import build_app

    build_app(arguments[0] if arguments else "")(arguments, prog_name="flowstone")
    return 0
