"""`flowstone profile`: named connections, so that commands need no --bootstrap and --config."""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.common.connection_options import (
    BOOTSTRAP,
    check_client_values,
    profile_directory,
    profile_path,
    read_client_file,
)
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.config.properties import format_properties
from flowstone.ports.secret_files import write_secret

ProfileName = Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Add, list and remove profiles: named connections for --profile.", rich_markup_mode=None)
    group.command("add")(add)
    group.command("list")(list_profiles)
    group.command("remove")(remove)
    app.add_typer(group, name="profile", no_args_is_help=True)


def add(
    name: ProfileName,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A client's properties file, which is copied.")
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option("--servers", metavar="HOST:PORT", help="The brokers' addresses, instead of those in the file."),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of this name.")] = False,
) -> None:
    """Store a connection under a name: commands use it with --profile NAME, or by FLOWSTONE_PROFILE=NAME."""
    values = read_client_file(config) if config is not None else {}
    if servers is not None:
        values[BOOTSTRAP] = servers
    if BOOTSTRAP not in values:
        raise CommandError(f"where are the brokers? Name them with --servers, or as {BOOTSTRAP} in the --config file")
    check_client_values(values, config or name)
    path = profile_path(name)
    with system_errors(str(path)):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if replace:
            path.unlink(missing_ok=True)
        try:
            write_secret(str(path), format_properties(values))
        except FileExistsError:
            raise CommandError(f"there is a profile {name}: use --replace to replace it") from None
    print(f"profile {name} connects to {values[BOOTSTRAP]}; use it with --profile {name}")


def list_profiles(json_output: JsonOutput = False) -> None:
    """List the names of the profiles."""
    names = sorted(path.name.removesuffix(".properties") for path in profile_directory().glob("*.properties"))
    if json_output:
        print_document({"profiles": names})
        return
    print("\n".join(names) if names else "there are no profiles: add one with `flowstone profile add`")


def remove(name: ProfileName) -> None:
    """Remove a profile."""
    path = profile_path(name)
    with system_errors(str(path)):
        if not path.exists():
            raise CommandError(f"there is no profile {name}; see `flowstone profile list`")
        path.unlink()
    print(f"profile {name} is removed")
