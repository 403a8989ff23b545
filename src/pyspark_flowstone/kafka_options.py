"""The options of the Kafka connector that this source does not use, and those of encryption and logins, which it does.

A query that is moved from the Kafka connector keeps its options: those that tune a
JVM consumer are accepted without effect; those that would change the result and are not supported are refused by name.
"""

from __future__ import annotations

from flowstone.client.security import PLAINTEXT, SecuredBootstrap, parse_security
from flowstone.errors import ConfigError
from pyspark_flowstone.values import GivenOptions, OptionError

KAFKA_PREFIX = "kafka."

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


def is_security_option(name: str) -> bool:
    return name.lower().startswith(_SECURITY_PREFIXES)


def secured(bootstrap: str, options: GivenOptions) -> str:
    """Return the address with the security that the options mean, which travels to the tasks and shows no secret.

    Raises OptionError, without any secret.
    """
    names = [name for name in options.names() if is_security_option(name)]
    properties = {name.removeprefix(KAFKA_PREFIX): (options.get(name) or "").strip() for name in names}
    try:
        security = parse_security(properties)
    except ConfigError as error:
        raise OptionError(f"{KAFKA_PREFIX}{error}") from None
    return bootstrap if security == PLAINTEXT else SecuredBootstrap(bootstrap, security)
