"""Connections of this broker to the others: through which listener, and with which encryption and login."""

from __future__ import annotations

from collections.abc import Mapping
from ssl import SSLContext

from flowstone.broker.authentication.listener_security import ListenerSecurity
from flowstone.client.security import ClientSecurity
from flowstone.config import BrokerConfig
from flowstone.errors import ConfigError
from flowstone.ports.network import Network


def inter_broker_listener(config: BrokerConfig, security: Mapping[str, ListenerSecurity]) -> str:
    """Return the name of the listener on which brokers reach each other. Raises ConfigError if there is none."""
    name, protocol = config.inter_broker_listener_name, config.security_inter_broker_protocol
    if name and protocol:
        raise ConfigError("inter.broker.listener.name and security.inter.broker.protocol: set one of them, not both")
    if name:
        if name.upper() not in security:
            raise ConfigError(f"inter.broker.listener.name: there is no listener named {name}")
        return name.upper()
    if not protocol:
        return next(iter(security))
    found = [each.name for each in security.values() if each.protocol == protocol]
    if not found:
        raise ConfigError(f"security.inter.broker.protocol: no listener has the protocol {protocol}")
    return found[0]


def peer_network(network: Network, config: BrokerConfig, security: ListenerSecurity) -> Network:
    """Return the network for connections to other brokers' listener of this security.

    Raises ConfigError if a certificate is unusable.
    """
    if not security.has_tls and not security.has_sasl:
        return network
    from flowstone.client.peer import SecuredNetwork  # a broker that is alone has no use for it

    login = security.own_login
    client = ClientSecurity(
        security.protocol,
        config.sasl_mechanism_inter_broker_protocol,
        login.username,
        login.password,
        security.pem,
        checks_host=security.checks_host,
    )
    if not security.has_tls:
        return SecuredNetwork(network, client)
    followed = security.client_context()

    def context() -> SSLContext:
        followed.refresh()
        return followed.current

    return SecuredNetwork(network, client, context)
