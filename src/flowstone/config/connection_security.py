"""The settings of encryption and authentication: TLS, SASL, users.

Those in `PER_LISTENER` may be given for one listener only, as `listener.name.<listener>.<setting>` with the listener's
name in lower case. `<mechanism>.sasl.jaas.config` also names the mechanism, as in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowstone.config.setting import DAY_MS, HOUR_MS, INT_MAX, LONG_MAX, Kind, broker_setting
from flowstone.config.without_effect import StoredConfig

LISTENER_PREFIX = "listener.name."
SCRAM_NAMES = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_MECHANISMS = ("PLAIN", *SCRAM_NAMES, "OAUTHBEARER")
KAFKA_MECHANISMS = (*SASL_MECHANISMS, "GSSAPI")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSecurityConfig(StoredConfig):
    """Settings of encryption and authentication."""

    listener_security_protocol_map: tuple[str, ...] = broker_setting(
        "listener.security.protocol.map",
        Kind.LIST,
        (),
        "The security protocol of each listener, as NAME:PROTOCOL with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. A "
        "listener whose name is a protocol needs no entry.",
    )
    listeners_insecure_enable: bool = broker_setting(
        "listeners.insecure.enable",
        Kind.BOOLEAN,
        False,
        "Whether a listener on an address other than loopback may lack encryption, logins or an authorizer. Like "
        "--insecure.",
    )
    security_inter_broker_protocol: str = broker_setting(
        "security.inter.broker.protocol",
        Kind.STRING,
        "",
        "The protocol of the listener through which brokers connect to each other; an alternative to "
        "inter.broker.listener.name.",
        choices=("", *SECURITY_PROTOCOLS),
    )
    sasl_enabled_mechanisms: tuple[str, ...] = broker_setting(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        SCRAM_NAMES,
        "The mechanisms with which clients may log in. PLAIN accepts the users of sasl.jaas.config and users with "
        "SCRAM credentials.",
        choices=SASL_MECHANISMS,
    )
    sasl_mechanism_inter_broker_protocol: str = broker_setting(
        "sasl.mechanism.inter.broker.protocol",
        Kind.STRING,
        "SCRAM-SHA-512",
        "The mechanism with which this broker logs in to other brokers, as the user of sasl.jaas.config.",
        choices=("PLAIN", *SCRAM_NAMES),
    )
    sasl_jaas_config: str = broker_setting(
        "sasl.jaas.config",
        Kind.PASSWORD,
        "",
        "Users, in Kafka's form: a login module, required, and options; username and password are those with which "
        "this broker logs in to others, and user_NAME the password of a user who logs in with PLAIN.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str = broker_setting(
        "sasl.oauthbearer.jwks.endpoint.url",
        Kind.STRING,
        "",
        "The keys with which tokens of OAUTHBEARER are signed (JWKS): an https URL, or file:///PATH. Required for this "
        "mechanism.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = broker_setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms", Kind.LONG, HOUR_MS, "How often these keys are read again.", low=1
    )
    sasl_oauthbearer_expected_issuer: str = broker_setting(
        "sasl.oauthbearer.expected.issuer",
        Kind.STRING,
        "",
        "The issuer (iss) that tokens must have. Required for OAUTHBEARER.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = broker_setting(
        "sasl.oauthbearer.expected.audience",
        Kind.LIST,
        (),
        "The audiences (aud) of which tokens must have one. Required for OAUTHBEARER.",
    )
    sasl_oauthbearer_sub_claim_name: str = broker_setting(
        "sasl.oauthbearer.sub.claim.name", Kind.STRING, "sub", "The claim of a token that names the user."
    )
    sasl_oauthbearer_clock_skew_seconds: int = broker_setting(
        "sasl.oauthbearer.clock.skew.seconds",
        Kind.INT,
        30,
        "How far the clock of the issuer of tokens may differ from this broker's.",
        low=0,
        high=3600,
    )
    connections_max_reauth_ms: int = broker_setting(
        "connections.max.reauth.ms",
        Kind.LONG,
        0,
        "How long after a login a client must log in again over the same connection, or the connection is closed; 0 "
        "or less: never.",
    )
    connection_failed_authentication_delay_ms: int = broker_setting(
        "connection.failed.authentication.delay.ms",
        Kind.INT,
        100,
        "How long the answer to a failed login is delayed, after which the connection is closed.",
        low=0,
        high=INT_MAX,
    )
    connection_login_timeout_ms: int = broker_setting(
        "connection.login.timeout.ms",
        Kind.INT,
        30_000,
        "How long a client may take for its TLS handshake and its login.",
        low=1,
    )
    scram_credentials_file: str = broker_setting(
        "scram.credentials.file",
        Kind.STRING,
        "",
        "A file with SCRAM credentials, which only its owner may read. At the start, the broker stores the "
        "credentials of users that have none in the cluster. `flowstone secure init` writes one for its admin user.",
    )
    delegation_token_secret_key: str = broker_setting(
        "delegation.token.secret.key",
        Kind.PASSWORD,
        "",
        "The secret from which the passwords of delegation tokens are derived, the same on all brokers, at least 16 "
        "characters; empty: there are no tokens.",
    )
    delegation_token_max_lifetime_ms: int = broker_setting(
        "delegation.token.max.lifetime.ms",
        Kind.LONG,
        7 * DAY_MS,
        "How long a delegation token can be renewed.",
        low=1,
        high=LONG_MAX >> 1,
    )
    delegation_token_expiry_time_ms: int = broker_setting(
        "delegation.token.expiry.time.ms",
        Kind.LONG,
        DAY_MS,
        "Maximum time until a delegation token expires after it was created or renewed.",
        low=1,
        high=LONG_MAX >> 1,
    )
    delegation_token_expiry_check_interval_ms: int = broker_setting(
        "delegation.token.expiry.check.interval.ms",
        Kind.LONG,
        HOUR_MS,
        "How often expired delegation tokens are removed from the metadata. Expired tokens are refused even before "
        "that.",
        low=1,
    )
    http_tokens_file: str = broker_setting(
        "http.tokens.file",
        Kind.STRING,
        "",
        "A file with a line user=token for each program that may read the HTTP pages; only its owner may read it. "
        "With it, every page but /health and /ready needs a token (Authorization: Bearer TOKEN), and the user's access "
        "rules apply.",
    )
    http_ssl_enable: bool = broker_setting(
        "http.ssl.enable",
        Kind.BOOLEAN,
        False,
        "Whether the HTTP port speaks TLS, with the key of ssl.keystore.location.",
    )
    ssl_keystore_type: str = broker_setting(
        "ssl.keystore.type", Kind.STRING, "PEM", "The form of the key and its certificates.", choices=("PEM",)
    )
    ssl_keystore_location: str = broker_setting(
        "ssl.keystore.location",
        Kind.STRING,
        "",
        "A PEM file with the private key of the listener and its certificate, followed by those of the authorities in "
        "between. It is read again when it changes.",
    )
    ssl_keystore_key: str = broker_setting(
        "ssl.keystore.key", Kind.PASSWORD, "", "The private key in PEM form, instead of ssl.keystore.location."
    )
    ssl_keystore_certificate_chain: str = broker_setting(
        "ssl.keystore.certificate.chain", Kind.PASSWORD, "", "The certificates of ssl.keystore.key in PEM form."
    )
    ssl_key_password: str = broker_setting(
        "ssl.key.password", Kind.PASSWORD, "", "The password of the private key, if it is encrypted."
    )
    ssl_truststore_type: str = broker_setting(
        "ssl.truststore.type", Kind.STRING, "PEM", "The form of the trusted certificates.", choices=("PEM",)
    )
    ssl_truststore_location: str = broker_setting(
        "ssl.truststore.location",
        Kind.STRING,
        "",
        "A PEM file with the certificates of the authorities that sign certificates of clients and of other brokers. "
        "It is read again when it changes.",
    )
    ssl_truststore_certificates: str = broker_setting(
        "ssl.truststore.certificates",
        Kind.PASSWORD,
        "",
        "The trusted certificates in PEM form, instead of ssl.truststore.location.",
    )
    ssl_client_auth: str = broker_setting(
        "ssl.client.auth",
        Kind.STRING,
        "none",
        "Whether clients of a listener with the protocol SSL are asked for a certificate, which then names their user; "
        "with SASL_SSL they may be required to have one, and the login names the user.",
        choices=("none", "requested", "required"),
    )
    ssl_enabled_protocols: tuple[str, ...] = broker_setting(
        "ssl.enabled.protocols", Kind.LIST, ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", choices=("TLSv1.2", "TLSv1.3")
    )
    ssl_cipher_suites: tuple[str, ...] = broker_setting(
        "ssl.cipher.suites",
        Kind.LIST,
        (),
        "Cipher suites of TLS 1.2, by the names of the standards or of OpenSSL; empty: those of OpenSSL.",
    )
    ssl_endpoint_identification_algorithm: str = broker_setting(
        "ssl.endpoint.identification.algorithm",
        Kind.STRING,
        "https",
        "With https, this broker checks that the certificate of another broker is for the address that it connects to; "
        "empty: it does not.",
        choices=("", "https"),
    )
    ssl_principal_mapping_rules: str = broker_setting(
        "ssl.principal.mapping.rules",
        Kind.STRING,
        "DEFAULT",
        "Rules that turn the distinguished name of a client's certificate into a user name, as in Kafka: "
        "RULE:pattern/replacement/ with an L or U for lower or upper case, separated by commas; the first that matches "
        "applies, and DEFAULT is the whole name.",
    )


# The settings that may be given for one listener; the other settings of this module concern all of them.
PER_LISTENER = frozenset(
    {
        "connections.max.reauth.ms",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)


def split_listener_setting(name: str) -> tuple[str, str] | None:
    """Return the listener (in upper case) and the setting of a `listener.name.` name; None for other names.

    The setting `<mechanism>.sasl.jaas.config` is returned with the mechanism in lower case.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    mechanism, dot, rest = setting.partition(".")
    if dot and rest == "sasl.jaas.config" and mechanism.upper() in SASL_MECHANISMS:
        return listener.upper(), setting.lower()
    return (listener.upper(), setting) if listener and setting in PER_LISTENER else None
