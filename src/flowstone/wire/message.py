"""The base class of all messages and structs of the protocol.

The classes themselves are generated (`messages/generated.py`); this base class gives them equality, and a short repr
for tests and logs. A struct has the fields of all versions; fields that a version lacks have their defaults.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeAlias

from flowstone.types import Bytes

# An encoder's output: bytes, or an object with a length (a slice of a file) that the connection sends itself.
Chunk: TypeAlias = Bytes | Sized
Records: TypeAlias = Bytes | Sized


class Message:
    """A struct of the wire protocol: typed attributes, a keyword-only constructor, no behaviour."""

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_comparable(getattr(self, name)) == _comparable(getattr(other, name)) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def _comparable(value: object) -> object:
    """Return the value with arrays as one type: a default array is a tuple, a decoded one a list."""
    return list(value) if isinstance(value, tuple) else value
