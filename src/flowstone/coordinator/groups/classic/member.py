"""One member of a group of the classic protocol, and an estimate of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowstone.coordinator.groups.config import (
    MEMBER_OVERHEAD_BYTES,
    PENDING_MEMBER_OVERHEAD_BYTES,
    PROTOCOL_OVERHEAD_BYTES,
    TEXT_CHARACTER_BYTES,
)
from flowstone.coordinator.groups.messages import DescribedMember
from flowstone.coordinator.groups.records import StoredMember


def member_bytes(
    client_id: str, client_host: str, group_instance_id: str | None, protocols: Mapping[str, bytes]
) -> int:
    """Return an estimate of a member's memory in bytes, without its id and its assignment."""
    names = len(client_id) + len(client_host) + len(group_instance_id or "") + sum(map(len, protocols))
    metadata_bytes = sum(map(len, protocols.values()))
    overhead_bytes = MEMBER_OVERHEAD_BYTES + PROTOCOL_OVERHEAD_BYTES * len(protocols)
    return overhead_bytes + TEXT_CHARACTER_BYTES * names + metadata_bytes


def pending_bytes(member_id: str) -> int:
    """Return an estimate of the memory in bytes of a member id that was handed out."""
    return PENDING_MEMBER_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(member_id)


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: dict[str, bytes]  # name to metadata, the preferred one first
    assignment: bytes = b""  # the last stored one
    counted_bytes: int = 0  # its share of the group's `members_bytes`
    is_new: bool = False  # its first join has not been answered: it cannot send heartbeats yet

    @property
    def size_bytes(self) -> int:
        """Return an estimate of the member's memory in bytes."""
        return (
            member_bytes(self.client_id, self.client_host, self.group_instance_id, self.protocols)
            + TEXT_CHARACTER_BYTES * len(self.member_id)
            + len(self.assignment)
        )

    def described(self, protocol: str | None) -> DescribedMember:
        """Return the member as DescribeGroups shows it, with its metadata for the protocol if one is chosen."""
        return DescribedMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.protocols[protocol] if protocol is not None else b"",
            self.assignment,
        )

    def stored(self, protocol: str, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols[protocol],
            assignment,
        )
