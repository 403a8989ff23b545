"""The options of encryption and logins, as the Kafka connector names them: `kafka.security.protocol`, `kafka.sasl.*`,
`kafka.ssl.*`.

They become part of the bootstrap address (`SecuredBootstrap`), which travels to the tasks and shows no secret. Files
that the options name must exist on every machine with tasks.
"""

from __future__ import annotations

from flowstone.client.security import PLAINTEXT, SecuredBootstrap, parse_security
from flowstone.errors import ConfigError
from pyspark_flowstone.kafka_options import KAFKA_PREFIX
from pyspark_flowstone.values import GivenOptions, OptionError

_PREFIXES = tuple(KAFKA_PREFIX + each for each in ("security.", "sasl.", "ssl."))


def is_security_option(name: str) -> bool:
    return name.lower().startswith(_PREFIXES)


def secured(bootstrap: str, options: GivenOptions) -> str:
    """Return the address, with the security that the options mean. Raises OptionError, without any secret."""
    names = [name for name in options.names() if is_security_option(name)]
    properties = {name.removeprefix(KAFKA_PREFIX): (options.get(name) or "").strip() for name in names}
    try:
        security = parse_security(properties)
    except ConfigError as error:
        raise OptionError(f"{KAFKA_PREFIX}{error}") from None
    return bootstrap if security == PLAINTEXT else SecuredBootstrap(bootstrap, security)
