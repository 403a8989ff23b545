"""The table of APIs that the codec can encode and decode: keys, names, versions, message classes.

The broker's registry decides separately which of them it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from flowstone.wire.message import Message
from flowstone.wire.messages.generated import API_TABLE

API_VERSIONS_KEY = 18


class Api(NamedTuple):
    """One API: a request, its response, and the versions of the pair."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    request: type[Message]
    response: type[Message]

    def has_version(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Return whether messages of this version, and their request header, have tagged fields."""
        return version >= self.flexible_from

    def has_flexible_response_header(self, version: int) -> bool:
        """Return whether the response header has tagged fields; never for ApiVersions.

        The client of ApiVersions does not know yet which versions the broker supports.
        """
        return version >= self.flexible_from and self.key != API_VERSIONS_KEY


APIS: Mapping[int, Api] = MappingProxyType({row[0]: Api(*row) for row in API_TABLE})
