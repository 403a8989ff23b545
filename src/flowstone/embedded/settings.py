"""The settings that differ for an embedded broker, by Kafka's names. All others have their normal defaults."""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.config import INT_MAX, LONG_MAX, MIB

HOST = "127.0.0.1"
# Longer than any test advances its clock.
NEVER_MS = 1000 * 365 * 24 * 60 * 60 * 1000

# Small, because a test may run many brokers.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "num.flush.threads": "1",
    "num.reader.threads": "1",
    # No busy-polling: if client and broker are threads of one process, it keeps the client from running.
    "idle.poll.us": "0",
    "queued.max.request.bytes": str(64 * MIB),
    "log.open.files.max": "256",
    "shutdown.timeout.ms": "5000",
    "log.scrub.bytes.per.second": "0",
    "offsets.topic.num.partitions": "1",
    # The members of a test's group join one after the other, and the test waits for the first assignment.
    "group.initial.rebalance.delay.ms": "0",
    # Clients use real time: when the clock is advanced, a connection has not been idle for that long.
    "connections.max.idle.ms": str(NEVER_MS),
    "connection.frame.timeout.ms": str(NEVER_MS),
    "connection.login.timeout.ms": str(INT_MAX),
}
# Data in a temporary directory is removed with the process: waiting for the disk has no benefit.
TEMPORARY_SETTINGS: Mapping[str, str] = {"log.flush.interval.messages": str(LONG_MAX)}


def broker_settings(
    data: str, port: int, given: Mapping[str, object], *, is_temporary: bool, protocol: str = "PLAINTEXT"
) -> dict[str, str]:
    """Return the settings as text; `given` may also contain numbers and booleans, for convenience in tests."""
    return {
        **DEFAULT_SETTINGS,
        **(TEMPORARY_SETTINGS if is_temporary else {}),
        **{name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()},
        "log.dirs": data,
        "listeners": f"{protocol}://{HOST}:{port}",
    }
