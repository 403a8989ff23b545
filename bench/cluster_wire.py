"""Protocol code for the load on clusters: topics with several replicas, and partition leaders.

Like `bench.wire`, this is separate from the broker's own codec. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack, unpack_from

from bench import wire


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition as a broker describes it. `leader` is negative if there is none."""

    partition: int
    leader: int
    isr: tuple[int, ...]


def create_topic(topic: str, replicas: Sequence[Sequence[int]]) -> bytes:
    """Return a request for a topic with partitions on the brokers in `replicas`, each led by its first."""
    assignments = b"".join(
        pack(f">ii{len(nodes)}i", partition, len(nodes), *nodes) for partition, nodes in enumerate(replicas)
    )
    by_assignment, configs = -1, 0
    body = pack(">i", 1) + _string(topic) + pack(">ih", by_assignment, by_assignment)
    body += pack(">i", len(replicas)) + assignments + pack(">i", configs)
    return wire.request(wire.CREATE_TOPICS, body + pack(">i?", wire.REQUEST_TIMEOUT_MS, False))


def metadata(topic: str) -> bytes:
    return wire.request(wire.METADATA, pack(">i", 1) + _string(topic))


def partitions(buffer: bytes) -> list[Placed]:
    """Return the partitions of the requested topic, none if the broker does not know it yet."""
    (brokers,) = unpack_from(">i", buffer, 4)
    at = 8
    for _ in range(brokers):  # node id, host, port, rack
        at = _after_string(buffer, _after_string(buffer, at + 4) + 4)
    _controller, _topics, error = unpack_from(">iih", buffer, at)
    at = _after_string(buffer, at + 10) + 1
    (count,) = unpack_from(">i", buffer, at)
    at += 4
    found = []
    for _ in range(0 if error else count):
        _error, partition, leader, replicas = unpack_from(">hiii", buffer, at)
        at += 14 + 4 * replicas
        (in_sync,) = unpack_from(">i", buffer, at)
        isr = unpack_from(f">{in_sync}i", buffer, at + 4)
        at += 4 + 4 * in_sync
        found.append(Placed(partition, leader, isr))
    return found


def _string(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode("ascii")


def _after_string(buffer: bytes, at: int) -> int:
    (size,) = unpack_from(">h", buffer, at)
    return int(at + 2 + max(size, 0))
