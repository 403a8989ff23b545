"""The sources of settings for `flowstone up`: a file, the environment, flags; later ones override earlier ones.

This module only handles names; `config` checks values. Kafka has several names for some settings
(`log.retention.hours`, `log.retention.ms`): a later source overrides an earlier one under whichever name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowstone.broker.network.listeners import check_port, is_number
from flowstone.config import TOPIC_DEFAULT_NAMES, is_known_broker_name, known_broker_names, nearest
from flowstone.config.properties import parse_properties
from flowstone.errors import ConfigError

ENVIRONMENT_PREFIX = "FLOWSTONE_SET_"
DEFAULT_LISTENER_NAME = "PLAINTEXT"


def merge(sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for source in sources:
        given = {_identity(name) for name in source}
        merged = {name: value for name, value in merged.items() if _identity(name) not in given}
        merged.update(source)
    return merged


def _identity(name: str) -> str:
    """Return one name for all names of the same setting."""
    known = TOPIC_DEFAULT_NAMES.get(name)
    return known[0].name if known else name


def read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the configuration file {path} is not UTF-8 text") from None
    values = parse_properties(text, path)
    known = known_broker_names()
    for name in values:
        if not is_known_broker_name(name):
            raise ConfigError(f"{path}: unknown setting {name}{nearest(name, known)}")
    return values


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in the environment: FLOWSTONE_SET_LOG_RETENTION_MS is log.retention.ms."""
    by_variable = {variable_name(name): name for name in known_broker_names()}
    values: dict[str, str] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in by_variable:
            raise ConfigError(f"unknown setting in the environment: {variable}{nearest(variable, by_variable)}")
        values[by_variable[variable]] = value
    return values


def variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def read_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """Return the settings given as `--set name=value`."""
    values: dict[str, str] = {}
    known = known_broker_names()
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals:
            raise ConfigError(f"--set {assignment}: expected --set name=value")
        if not is_known_broker_name(name):
            raise ConfigError(f"--set {name}: unknown setting {name}{nearest(name, known)}")
        values[name] = value
    return values


def check_zookeeper(connect: str) -> None:
    """Raise ConfigError if an address in `connect`, HOST:PORT separated by commas, is invalid."""
    for address in connect.partition("/")[0].split(","):
        host, colon, port = address.strip().rpartition(":")
        try:
            (host if colon else address.strip()).encode("idna")
        except UnicodeError:
            raise ConfigError(f"zookeeper.connect: {address!r} is not a host name: expected HOST:PORT") from None
        if colon and not address.strip().endswith("]"):
            if not is_number(port):
                raise ConfigError(f"zookeeper.connect: {address!r} is not HOST:PORT")
            check_port("zookeeper.connect", address, port)


def read_addresses(listen: Sequence[str], advertise: Sequence[str], configured: str = "") -> dict[str, str]:
    """Return `listeners` and `advertised.listeners` from --listen and --advertise, with default names.

    `configured` are the listeners of a file or the environment. A single --listen without a name moves the first of
    them, which keeps its name and so its protocol; the others stay.
    """
    values: dict[str, str] = {}
    others = [each.strip() for each in configured.split(",") if each.strip()]
    first_name = _listener_name(others[0]) if others else ""
    if first_name and len(listen) == 1 and not _listener_name(listen[0]):
        listen = [f"{first_name}://{listen[0]}", *others[1:]]
    names = [_listener_name(address) or DEFAULT_LISTENER_NAME for address in listen]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two listeners are named {name}: give each a name, --listen NAME://HOST:PORT")
    if listen:
        values["listeners"] = ",".join(map(_with_name, listen, names))
    if advertise:
        if len(names) > 1 and not all(map(_listener_name, advertise)):
            raise ConfigError("with several listeners, name the listener: --advertise NAME://HOST:PORT")
        default = names[0] if names else DEFAULT_LISTENER_NAME
        values["advertised.listeners"] = ",".join(_with_name(address, default) for address in advertise)
    return values


def _listener_name(address: str) -> str:
    name, separator, _rest = address.partition("://")
    return name if separator else ""


def _with_name(address: str, name: str) -> str:
    return address if "://" in address else f"{name}://{address}"
