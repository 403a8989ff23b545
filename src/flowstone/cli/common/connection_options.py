"""The options `--config` and `--profile` of every command that connects to brokers, and what they change.

A command declares `bootstrap`; these two are added to it when commands are registered. The file has Kafka's property
names: `bootstrap.servers`, `security.protocol`, `sasl.*`, `ssl.*`. They are then used by all connections of the process
(`flowstone.client.security.default_security`).
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from flowstone.cli.common.errors import CommandError
from flowstone.client.security import (
    PLAINTEXT,
    SERVERS,
    check_properties,
    parse_security,
    read_properties,
    set_default_security,
)
from flowstone.errors import ConfigError

BOOTSTRAP, HTTP_TOKEN = SERVERS, "http.token"
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _config_option(*names: str) -> Any:
    return Annotated[
        str | None,
        typer.Option(*names, envvar="FLOWSTONE_CONFIG", metavar="FILE", help="A client's properties file."),
    ]


# Some commands have another --config, for settings; --command-config is the name in Kafka's tools. A value of that
# other --config that is no name=value is a properties file too.
_SHORT_NAME, _LONG_NAME = "--config", "--command-config"
Profile = Annotated[
    str | None,
    typer.Option(envvar="FLOWSTONE_PROFILE", metavar="NAME", help="A profile, see `flowstone profile add`."),
]

_http_token = ""
_file = ""


def http_token() -> str:
    """Return the token for brokers' HTTP pages, "" without one."""
    return _http_token


def client_file() -> str:
    """Return the path of the properties file that the command was given, or of its profile, "" without one."""
    return _file


def add_connection_options(app: typer.Typer) -> None:
    """Give `--config` and `--profile` to each command of the application that takes `--bootstrap`."""
    for command in app.registered_commands:
        if command.callback is not None and "bootstrap" in inspect.signature(command.callback).parameters:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_connection_options(group.typer_instance)


def _with_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(callback, "connects_with_options"):
        return callback
    signature = inspect.signature(callback, eval_str=True)
    has_settings = "config" in signature.parameters
    names = (_LONG_NAME,) if has_settings else (_SHORT_NAME, _LONG_NAME)
    added = [
        _parameter("command_config", _config_option(*names), None),
        _parameter("profile", Profile, None),
        _parameter("context", typer.Context, inspect.Parameter.empty),
    ]

    @wraps(callback)
    def run(*, command_config: str | None, profile: str | None, context: typer.Context, **arguments: Any) -> Any:
        if has_settings and arguments["config"]:
            file, arguments["config"] = _split_config(arguments["config"])
            command_config = file or command_config
        servers = use(command_config, profile)
        if servers is not None and _is_default(context, "bootstrap"):
            arguments["bootstrap"] = servers
        return callback(**arguments)

    parameters = [*signature.parameters.values(), *added]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.connects_with_options = True  # type: ignore[attr-defined]
    return run


def _split_config(values: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the properties file among the values of `--config`, if there is one, and the settings."""
    files = [each for each in values if "=" not in each]
    if len(files) > 1:
        raise CommandError(f"--config: {files[0]} and {files[1]} are not name=value; only one can be a properties file")
    return next(iter(files), None), [each for each in values if "=" in each]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _is_default(context: typer.Context, parameter: str) -> bool:
    """Return whether the parameter is neither on the command line nor in the environment."""
    source = context.get_parameter_source(parameter)
    return source is None or source.name.startswith("DEFAULT")


def use(config: str | None, profile: str | None) -> str | None:
    """Use the connection properties of the file or the profile; return its servers, or None. Raises CommandError."""
    if config is not None and profile is not None:
        raise CommandError("--config and --profile: name one of them, not both")
    global _http_token, _file
    if config is None and profile is None:
        set_default_security(PLAINTEXT)
        _http_token = _file = ""
        return None
    values = read_client_file(config) if config is not None else read_profile(profile or "")
    try:
        set_default_security(parse_security(values))
    except ConfigError as error:
        raise CommandError(f"{config or f'profile {profile}'}: {error}") from None
    _http_token = values.get(HTTP_TOKEN, "")
    _file = os.path.abspath(config if config is not None else profile_path(profile or ""))
    return values.get(BOOTSTRAP)


def read_client_file(path: str) -> dict[str, str]:
    """Return the properties in a file. Raises CommandError, without their values, if it is unusable."""
    try:
        return read_properties(path)
    except ConfigError as error:
        raise CommandError(str(error)) from None


def check_client_values(values: Mapping[str, str], source: str) -> None:
    """Raise CommandError if a security property is unknown or does not fit the others."""
    try:
        check_properties(values, source)
    except ConfigError as error:
        raise CommandError(str(error)) from None


def profile_directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "flowstone" / "profiles"


def profile_path(name: str) -> Path:
    """Return the file of a profile. Raises CommandError if the name is unusable."""
    if not PROFILE_NAME.fullmatch(name):
        raise CommandError(f"{name!r} is not a profile name: use letters, digits, dots, dashes and underscores")
    return profile_directory() / f"{name}.properties"


def read_profile(name: str) -> dict[str, str]:
    path = profile_path(name)
    if not path.exists():
        raise CommandError(f"there is no profile {name}: create it with `flowstone profile add {name} --config FILE`")
    return read_client_file(str(path))
