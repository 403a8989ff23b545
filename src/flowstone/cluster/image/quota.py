"""The quotas of clients as the metadata stores them: a value by key for each entity.

An entity is a combination of a user and a client id, or one of them, or an address. A name of None stands for all that
have no quota of their own.
"""

from __future__ import annotations

USER, CLIENT_ID, IP = "user", "client-id", "ip"

# The pairs of type and name, sorted by type.
QuotaEntity = tuple[tuple[str, str | None], ...]

PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
