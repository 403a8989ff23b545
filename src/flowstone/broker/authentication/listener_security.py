"""The security of each listener: protocol, TLS context, mechanisms, users; parsed from the settings.

A setting of one listener (`listener.name.<listener>.…`) overrides the one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowstone.authentication.jaas import JaasConfig, parse_jaas
from flowstone.authentication.principal_mapping import PrincipalMapping
from flowstone.config import BrokerConfig, parse_attribute_values
from flowstone.config.connection_security import (
    LISTENER_PREFIX,
    SECURITY_PROTOCOLS,
    split_listener_setting,
)
from flowstone.errors import ConfigError
from flowstone.ports.pem_source import ClientAuth, PemSource
from flowstone.ports.tls_contexts import FollowedContext, client_context, server_context


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Encryption and logins of one listener's connections."""

    name: str
    protocol: str = "PLAINTEXT"
    pem: PemSource = field(default_factory=PemSource)
    client_auth: ClientAuth = ClientAuth.NONE
    checks_host: bool = True
    mechanisms: tuple[str, ...] = ()
    # The users of PLAIN whose passwords the settings name.
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    # With which this broker logs in to others, if they connect through this listener.
    own_login: JaasConfig = field(default=JaasConfig({}), repr=False)
    mapping: PrincipalMapping = field(default_factory=lambda: PrincipalMapping("DEFAULT"))
    reauth_ms: int = 0
    # How long the answer to a failed login is delayed.
    failure_delay_s: float = 0.0

    @property
    def has_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def authenticates(self) -> bool:
        """Return whether every client of the listener must prove who it is."""
        return self.has_sasl or (self.has_tls and self.client_auth is ClientAuth.REQUIRED)

    def server_context(self) -> FollowedContext:
        """Return the TLS context for the listener's connections. Raises ConfigError."""
        return FollowedContext(self.pem.files, lambda: server_context(self.pem, self.client_auth))

    def client_context(self) -> FollowedContext:
        """Return the TLS context for connections to the same listener of other brokers. Raises ConfigError."""
        return FollowedContext(self.pem.files, lambda: client_context(self.pem, checks_host=self.checks_host))


def parse_security(
    values: Mapping[str, str], config: BrokerConfig, listeners: Sequence[str]
) -> dict[str, ListenerSecurity]:
    """Return the security of each listener by its name. Raises ConfigError."""
    own: dict[str, dict[str, str]] = {name: {} for name in listeners}
    of_controllers = {name.upper() for name in config.controller_listener_names}
    for given, text in values.items():
        found = split_listener_setting(given)
        if found is None:
            continue
        listener, setting = found
        if listener in of_controllers:
            continue
        if listener not in own:
            raise ConfigError(f"{given}: there is no listener named {listener}")
        own[listener][setting] = text
    protocols = _protocols(config, listeners)
    return {name: _listener(name, protocols[name], config, own[name]) for name in listeners}


def _protocols(config: BrokerConfig, listeners: Sequence[str]) -> dict[str, str]:
    mapped = {}
    for entry in config.listener_security_protocol_map:
        name, colon, protocol = entry.partition(":")
        protocol = protocol.strip().upper()
        if not colon or protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL, with one of "
                f"{', '.join(SECURITY_PROTOCOLS)}"
            )
        mapped[name.strip().upper()] = protocol
    protocols = {}
    for name in listeners:
        protocol = mapped.get(name, name)
        if protocol not in SECURITY_PROTOCOLS:
            # A listener of any other name is plain text if the map is empty, as before there was one.
            if mapped:
                raise ConfigError(
                    f"listener.security.protocol.map: it has no protocol for the listener {name}: add {name}:SASL_SSL, "
                    "or another protocol"
                )
            protocol = "PLAINTEXT"
        protocols[name] = protocol
    return protocols


def _listener(name: str, protocol: str, config: BrokerConfig, own: Mapping[str, str]) -> ListenerSecurity:
    jaas = {setting: text for setting, text in own.items() if setting.endswith(".sasl.jaas.config")}
    plain = {setting: text for setting, text in own.items() if setting not in jaas}
    try:
        config = replace(config, **parse_attribute_values(plain))
    except ConfigError as error:
        raise ConfigError(f"{LISTENER_PREFIX}{name.lower()}.{error}") from None
    security = ListenerSecurity(name, protocol)
    if security.has_tls:
        security = _with_tls(security, config)
    if security.has_sasl:
        security = _with_sasl(security, config, jaas)
    return security


def pem_of(config: BrokerConfig) -> PemSource:
    """Return the key and the certificates that the settings name for all listeners."""
    return PemSource(
        keystore_location=config.ssl_keystore_location,
        key=config.ssl_keystore_key,
        certificate_chain=config.ssl_keystore_certificate_chain,
        key_password=config.ssl_key_password,
        truststore_location=config.ssl_truststore_location,
        trusted_certificates=config.ssl_truststore_certificates,
        versions=config.ssl_enabled_protocols,
        cipher_suites=config.ssl_cipher_suites,
    )


def _with_tls(security: ListenerSecurity, config: BrokerConfig) -> ListenerSecurity:
    return replace(
        security,
        pem=pem_of(config),
        client_auth=ClientAuth(config.ssl_client_auth),
        checks_host=config.ssl_endpoint_identification_algorithm == "https",
        mapping=PrincipalMapping(config.ssl_principal_mapping_rules),
    )


def _with_sasl(security: ListenerSecurity, config: BrokerConfig, jaas: Mapping[str, str]) -> ListenerSecurity:
    prefix = f"{LISTENER_PREFIX}{security.name.lower()}."
    parsed = {setting: parse_jaas(text, prefix + setting) for setting, text in jaas.items()}
    common = parse_jaas(config.sasl_jaas_config)
    plain = parsed.get("plain.sasl.jaas.config", common)
    own_mechanism = config.sasl_mechanism_inter_broker_protocol.lower()
    own_login = parsed.get(f"{own_mechanism}.sasl.jaas.config", common)
    return replace(
        security,
        mechanisms=config.sasl_enabled_mechanisms,
        users=plain.users,
        own_login=own_login,
        reauth_ms=max(0, config.connections_max_reauth_ms),
        failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
    )
