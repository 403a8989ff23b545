"""Addresses to listen on, and the advertised addresses that clients connect to: `NAME://HOST:PORT`.

A client that connected through a listener gets the brokers' advertised addresses of the same listener, so that a client
in a container and one on the host can both reach the broker. An address of all interfaces cannot be advertised: as in
Kafka, such a listener needs an advertised one.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config import BrokerConfig
from flowstone.errors import ConfigError

PORT_MAX = 65535
_EVERYWHERE = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    name: str
    host: str
    port: int


def parse_listeners(config: BrokerConfig) -> tuple[list[ListenerAddress], dict[str, ListenerAddress]]:
    """Return the addresses to listen on, and the advertised ones by name. Raises ConfigError if they do not fit."""
    of_controllers = {name.upper() for name in config.controller_listener_names}
    every = [_parse("listeners", text) for text in config.listeners]
    listeners = [each for each in every if each.name not in of_controllers]
    if not listeners:
        raise ConfigError("listeners: at least one address of a listener for clients is needed")
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise ConfigError("listeners: each needs a name of its own, such as INTERNAL://… and EXTERNAL://…")
    advertised = {}
    for text in config.advertised_listeners:
        address = _parse("advertised.listeners", text)
        if address.name in of_controllers:
            continue
        if address.name not in names:
            raise ConfigError(f"advertised.listeners: there is no listener named {address.name}")
        if address.host in _EVERYWHERE or not address.port:
            raise ConfigError(f"advertised.listeners: clients cannot connect to {text}; name a host and a port")
        advertised[address.name] = address
    for listener in listeners:
        if listener.host in _EVERYWHERE and listener.name not in advertised:
            raise ConfigError(
                f"listeners: {listener.host or 'no host'} is every address of this machine; set the one that clients "
                f"connect to, with --advertise HOST:PORT or advertised.listeners={listener.name}://HOST:PORT"
            )
    return listeners, advertised


def advertise(bound: ListenerAddress, advertised: dict[str, ListenerAddress]) -> tuple[str, int]:
    """Return the host and port that clients of this listener connect to."""
    told = advertised.get(bound.name, bound)
    return told.host, told.port


def is_number(port: str) -> bool:
    """Return whether the text is a whole number, or one with a sign, which `check_port` refuses as out of range."""
    return port.isascii() and port.removeprefix("-").isdecimal()


def check_port(setting: str, text: str, port: str) -> None:
    """Check the port in the address `text`; 0 means any free one. Raises ConfigError if it is out of range."""
    if len(port) > len(str(PORT_MAX)) or not 0 <= int(port) <= PORT_MAX:
        raise ConfigError(f"{setting}: there is no port {port} for {text!r} to use: choose one from 0 to {PORT_MAX}")


def _parse(setting: str, text: str) -> ListenerAddress:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not name or not colon or not is_number(port):
        raise ConfigError(f"{setting}: {text!r} is not of the form NAME://HOST:PORT")
    check_port(setting, text, port)
    return ListenerAddress(name.upper(), host.removeprefix("[").removesuffix("]"), int(port))
