"""The options of the Kafka connector that this source does not use, and those of encryption and logins, which it does.

A query that is moved from the Kafka connector keeps its options: those that tune a
JVM consumer are accepted without effect; those that would change the result and are not supported are refused by name.
"""

from __future__ import annotations

from flowstone.client.security import PLAINTEXT, PROPERTIES, SecuredBootstrap, parse_security, read_properties
from flowstone.errors import ConfigError
from pyspark_flowstone.values import GivenOptions, OptionError

KAFKA_PREFIX = "kafka."
# A client's properties file on the driver, for security without secrets among the options of a query.
CONFIG_FILE = "configFile"
# How long the first connection is tried. A user waits for it; a running query waits longer (client.cluster).
CONNECT_TIMEOUT, CONNECT_TIMEOUT_DEFAULT_S = "connectTimeout", 5.0

# Options of the connector itself that tune its consumers.
IGNORED = {
    "kafkaconsumer.polltimeoutms": "kafkaConsumer.pollTimeoutMs",
    "fetchoffset.numretries": "fetchOffset.numRetries",
    "fetchoffset.retryintervalms": "fetchOffset.retryIntervalMs",
    "partition.metadata.cache.ttl.ms": "partition.metadata.cache.ttl.ms",
    "groupidprefix": "groupIdPrefix",
}

# Kafka's consumer settings for frequencies, sizes and times, which are constants of our client.
CONSUMER_TUNING = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)

# What to do instead.
REFUSED = {
    "auto.offset.reset": "set startingOffsets instead",
    "enable.auto.commit": "set groupId to commit the progress to a group",
    "interceptor.classes": "interceptors are Java classes and do not run here",
    "key.deserializer": "keys come as bytes; cast or decode them in the query",
    "value.deserializer": "values come as bytes; cast or decode them in the query",
}

# Options of encryption and logins. Files that they name must exist on every machine with tasks.
_SECURITY_PREFIXES = tuple(KAFKA_PREFIX + each for each in ("security.", "sasl.", "ssl."))


def connect_timeout_s(options: GivenOptions) -> float:
    """Return how long the first connection is tried. Raises OptionError."""
    timeout_s = options.duration_ms(CONNECT_TIMEOUT, int(CONNECT_TIMEOUT_DEFAULT_S * 1000)) / 1000
    if not timeout_s:
        raise OptionError(f"{CONNECT_TIMEOUT}: it has to be above 0")
    return timeout_s


def is_security_option(name: str) -> bool:
    return name.lower().startswith(_SECURITY_PREFIXES)


def secured(bootstrap: str, options: GivenOptions) -> str:
    """Return the address with the security that the options mean, which travels to the tasks and shows no secret.

    Raises OptionError, without any secret.
    """
    names = [name for name in options.names() if is_security_option(name)]
    properties = {name.removeprefix(KAFKA_PREFIX): (options.get(name) or "").strip() for name in names}
    try:
        security = parse_security({**_in_file(options.get(CONFIG_FILE)), **properties})
    except ConfigError as error:
        raise OptionError(f"{KAFKA_PREFIX}{error}") from None
    return bootstrap if security == PLAINTEXT else SecuredBootstrap(bootstrap, security)


def _in_file(path: str | None) -> dict[str, str]:
    """Return the security properties in a file. Raises OptionError if it is unusable."""
    if not path:
        return {}
    try:
        return {name: value for name, value in read_properties(path).items() if name in PROPERTIES}
    except ConfigError as error:
        raise OptionError(f"{CONFIG_FILE}: {error}") from None
