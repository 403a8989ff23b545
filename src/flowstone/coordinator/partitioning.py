"""The partition of an internal topic that holds a key's state, by Kafka's rule, so that its tools find the state."""

from __future__ import annotations

from struct import unpack

_INT_BITS = 32
_INT_MASK = (1 << _INT_BITS) - 1
_INT_MIN = -(1 << (_INT_BITS - 1))


def partition_for(key: str, partition_count: int) -> int:
    code = java_hash_code(key)
    return 0 if code == _INT_MIN else abs(code) % partition_count  # -2^31 has no absolute value in Java


def java_hash_code(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 units, in 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for unit in unpack(f">{len(data) // 2}H", data):
        code = (31 * code + unit) & _INT_MASK
    return code - (1 << _INT_BITS) if code >> (_INT_BITS - 1) else code
