"""Refuses listeners that would let anyone on the network in, unless the operator insists.

On loopback nothing is needed. A listener on any other address needs encryption, logins, and an authorizer that decides
what each user may do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from flowstone.broker.authentication.listener_security import ListenerSecurity
from flowstone.broker.network.listeners import ListenerAddress
from flowstone.config import BrokerConfig
from flowstone.errors import ConfigError

SETTING = "listeners.insecure.enable"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def check_exposure(
    listeners: Iterable[ListenerAddress],
    security: Mapping[str, ListenerSecurity],
    http: tuple[str, int] | None,
    config: BrokerConfig,
) -> None:
    """Raise ConfigError for a listener, or an HTTP address, that is reachable from elsewhere and not secured."""
    if config.listeners_insecure_enable:
        return
    if http is not None and not is_loopback(http[0]) and not (config.http_ssl_enable and config.http_tokens_file):
        raise ConfigError(
            f"http.listener: the address {http[0]}:{http[1]} can be reached from other machines, and needs "
            "http.ssl.enable=true and http.tokens.file: `flowstone secure init DIR` creates them. Or use 127.0.0.1, or "
            "--http off, or say "
            f"--insecure ({SETTING}=true) if the network protects it"
        )
    for listener in listeners:
        if is_loopback(listener.host):
            continue
        missing = _missing(security[listener.name], config)
        if missing:
            raise ConfigError(
                f"the listener {listener.name}://{listener.host}:{listener.port} can be reached from other machines "
                f"and has {missing}: create keys, a user and a configuration with `flowstone secure init DIR`, or "
                f"listen on 127.0.0.1 only, or say --insecure ({SETTING}=true) if the network protects it"
            )


def _missing(security: ListenerSecurity, config: BrokerConfig) -> str:
    lacks = []
    if not security.has_tls:
        lacks.append("no encryption")
    if not security.authenticates:
        lacks.append("no login")
    if not config.authorizer_class_name:
        lacks.append("no authorizer")
    return ", ".join(lacks)
