"""`flowstone log forget`: lets a broker run without a log directory that is permanently lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.errors import StorageFault
from flowstone.log.lifecycle.directory_identity import LogDirectory
from flowstone.ports.system_files import SystemFiles


def forget(
    directory_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the lost directory.")],
    data_directories: Annotated[
        list[str], typer.Argument(metavar="DATA_DIR...", help="All remaining data directories of the broker.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this option, only show what would be lost.")
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Give up a data directory whose disk is lost permanently, so that its partitions start again, empty.

    When the broker starts, it logs the id of a missing directory, and keeps the partitions offline that may be there.
    The broker must be stopped.
    """
    with ExitStack() as opened:
        directories = [opened.enter_context(_open(path)) for path in data_directories]
        identities = [each.identity for each in directories if each.identity is not None]
        if any(identity.directory_id == directory_id for identity in identities):
            raise CommandError(f"the directory with id {directory_id} is one of the remaining directories")
        if not any(directory_id in identity.known_ids for identity in identities):
            known = {each for identity in identities for each in identity.known_ids}
            missing = known - {identity.directory_id for identity in identities}
            raise CommandError(
                f"no directory with id {directory_id} is missing; missing are: {', '.join(sorted(missing)) or 'none'}"
            )
        if not yes:
            raise CommandError(
                f"all records in the directory {directory_id} would be lost, and their offsets used again: "
                "run the command again with --yes"
            )
        for directory in directories:
            identity = directory.identity
            assert identity is not None
            left = tuple(each for each in identity.known_ids if each != directory_id)
            directory.format(identity._replace(known_ids=left if len(left) > 1 else ()))
    if json_output:
        print_document({"forgotten": directory_id})
    else:
        print(f"forgot {directory_id}: partitions that are in none of the directories start again, empty")


@contextmanager
def _open(path: str) -> Iterator[LogDirectory]:
    directory = LogDirectory(SystemFiles(), path)
    try:
        directory.open()
    except StorageFault as fault:
        raise CommandError(str(fault)) from None
    try:
        if directory.identity is None:
            raise CommandError(f"{path} is not a data directory of a broker")
        yield directory
    finally:
        directory.close()
