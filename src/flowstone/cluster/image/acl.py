"""One access rule as the metadata stores it, and the numbers that Kafka's protocol has for its parts.

Values that come from a request may be unknown numbers, so the fields are plain integers;
`cluster.decisions.acl_changes` checks them before a rule is stored.
"""

from __future__ import annotations

from typing import NamedTuple

# Pattern types.
ANY_PATTERN, MATCH_PATTERN, LITERAL, PREFIXED = 1, 2, 3, 4
# Permission types.
ANY_PERMISSION, DENY, ALLOW = 1, 2, 3
# Operations and resource types that stand for all of them.
ANY_OPERATION, ALL_OPERATIONS = 1, 2
ANY_RESOURCE = 1
# The literal name that every resource has, and the host and principal that stand for all.
WILDCARD = "*"
ANY_PRINCIPAL = "User:*"


class Acl(NamedTuple):
    """A rule: who may, or may not, do what with which resources, from which host."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int
