"""A broker's connection to the ZooKeeper ensemble: encryption, a login, and the permissions of the nodes it creates.

With a login every node is made for it alone. Nodes that were made before without one stay open: begin with a new path,
or change them with ZooKeeper's `setAcl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kazoo.security import make_digest_acl

from flowstone.config.cluster import ClusterConfig
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.secret_files import read_secret

SETTING = "zookeeper.auth.file"


@dataclass(frozen=True, slots=True)
class EnsembleLogin:
    """The arguments of a `KazooClient`; none of them without encryption and a login."""

    arguments: dict[str, Any] = field(default_factory=dict, repr=False)


NO_LOGIN = EnsembleLogin()


def ensemble_login(config: ClusterConfig) -> EnsembleLogin:
    """Return the encryption and login that the settings define. Raises ConfigError or StartupError if a file is
    unusable.
    """
    arguments: dict[str, Any] = {}
    if config.zookeeper_ssl_client_enable:
        if not config.zookeeper_ssl_truststore_location:
            raise ConfigError("zookeeper.ssl.client.enable=true needs zookeeper.ssl.truststore.location, a PEM file")
        arguments |= {
            "use_ssl": True,
            "verify_certs": True,
            "check_hostname": config.zookeeper_ssl_endpoint_identification_algorithm.lower() == "https",
            "ca": config.zookeeper_ssl_truststore_location,
            # One file has both, and kazoo uses neither unless both are named.
            "certfile": config.zookeeper_ssl_keystore_location or None,
            "keyfile": config.zookeeper_ssl_keystore_location or None,
            "keyfile_password": config.zookeeper_ssl_keystore_password or None,
        }
    if config.zookeeper_auth_file:
        user, password = _credentials(config.zookeeper_auth_file)
        arguments["auth_data"] = [("digest", f"{user}:{password}")]
        arguments["default_acl"] = [make_digest_acl(user, password, all=True)]
    return EnsembleLogin(arguments)


def _credentials(path: str) -> tuple[str, str]:
    try:
        text = read_secret(path)
    except PermissionError as error:
        raise StartupError(f"{SETTING}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StartupError(f"{SETTING}: {path} cannot be read: {reason}") from None
    user, colon, password = text.strip().partition(":")
    if not colon or not user or not password or "\n" in password:
        raise ConfigError(f"{SETTING}: {path} must have one line user:password")
    return user, password
