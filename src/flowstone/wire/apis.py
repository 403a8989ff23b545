"""The table of APIs that the codec knows: keys, names, versions, message classes.

What the broker serves is its own business; this table only says what can be encoded and decoded.
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
        """Whether bodies of this version, and the request header, carry tagged fields."""
        return version >= self.flexible_from

    def has_flexible_response_header(self, version: int) -> bool:
        """As `is_flexible`, but never for ApiVersions: its client does not yet know what the broker speaks."""
        return version >= self.flexible_from and self.key != API_VERSIONS_KEY


APIS: Mapping[int, Api] = MappingProxyType({row[0]: Api(*row) for row in API_TABLE})
