"""Requests and responses of group members in the last non-flexible versions, separate from the broker's codec.

A `consumer` group of one topic with the assignor `fixed`: the load program determines the assignment. JoinGroup has
version 3, the last one that accepts a new member without assigning an id first. Knows no socket and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack, unpack_from
from typing import NamedTuple

from bench.wire import CLIENT_ID, UnexpectedResponse

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 8, 9, 10, 11, 14
VERSIONS = {OFFSET_COMMIT: 7, OFFSET_FETCH: 5, FIND_COORDINATOR: 2, JOIN_GROUP: 3, SYNC_GROUP: 2}

SESSION_TIMEOUT_MS = 300_000  # nobody sends heartbeats
PROTOCOL_TYPE, PROTOCOL = "consumer", "fixed"
NO_GENERATION = -1
COORDINATOR_ERRORS = (14, 15, 16)  # loading, not available, on another broker: retried


class Joined(NamedTuple):
    generation: int
    leader: str
    member_id: str
    members: list[str]  # for the leader only


def request(api_key: int, body: bytes, correlation: int = 0) -> bytes:
    message = pack(">hhi", api_key, VERSIONS[api_key], correlation) + _string(CLIENT_ID) + body
    return pack(">i", len(message)) + message


def find_coordinator(group: str) -> bytes:
    return request(FIND_COORDINATOR, _string(group) + b"\0")


def find_coordinator_error(buffer: bytes) -> int:
    error: int = unpack_from(">h", buffer, 8)[0]
    return error


def join_group(group: str, topic: str, member_id: str = "") -> bytes:
    subscription = pack(">hi", 0, 1) + _string(topic) + pack(">i", -1)
    body = _string(group) + pack(">ii", SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS) + _string(member_id)
    body += _string(PROTOCOL_TYPE) + pack(">i", 1) + _string(PROTOCOL) + _bytes(subscription)
    return request(JOIN_GROUP, body)


def join_response(buffer: bytes) -> Joined:
    error, generation = unpack_from(">hi", buffer, 8)
    _expect("JoinGroup", error)
    _protocol, at = _read_string(buffer, 14)
    leader, at = _read_string(buffer, at)
    member_id, at = _read_string(buffer, at)
    (count,) = unpack_from(">i", buffer, at)
    at += 4
    members = []
    for _ in range(count):
        name, at = _read_string(buffer, at)
        (metadata_bytes,) = unpack_from(">i", buffer, at)
        at += 4 + metadata_bytes
        members.append(name)
    return Joined(generation, leader, member_id, members)


def sync_group(group: str, joined: Joined, topic: str, partitions: int) -> bytes:
    """Return a sync request: the leader assigns the partitions round-robin, the others send none."""
    body = _string(group) + pack(">i", joined.generation) + _string(joined.member_id) + pack(">i", len(joined.members))
    for at, member_id in enumerate(joined.members):
        owned = range(at, partitions, len(joined.members))
        assignment = pack(">hi", 0, 1) + _string(topic) + pack(f">i{len(owned)}i", len(owned), *owned) + pack(">i", -1)
        body += _string(member_id) + _bytes(assignment)
    return request(SYNC_GROUP, body)


def sync_response(buffer: bytes) -> int:
    """Return the number of bytes of the member's assignment."""
    error, assignment_bytes = unpack_from(">hi", buffer, 8)
    _expect("SyncGroup", error)
    return int(assignment_bytes)


def offset_commit(group: str, topic: str, offsets: Sequence[int]) -> bytes:
    """Return a commit of the offsets of partitions from 0, without a member."""
    body = _string(group) + pack(">i", NO_GENERATION) + _string("") + pack(">hi", -1, 1) + _string(topic)
    body += pack(">i", len(offsets))
    body += b"".join(pack(">iqih", partition, offset, -1, 0) for partition, offset in enumerate(offsets))
    return request(OFFSET_COMMIT, body)


def offset_commit_errors(buffer: bytes, topic: str) -> set[int]:
    """Return the error codes of all partitions of the topic."""
    first = 14 + len(topic)
    (count,) = unpack_from(">i", buffer, first)
    return {unpack_from(">ih", buffer, first + 4 + 6 * index)[1] for index in range(count)}


def offset_fetch(group: str, topic: str, partitions: Sequence[int]) -> bytes:
    body = _string(group) + pack(">i", 1) + _string(topic) + pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return request(OFFSET_FETCH, body)


def offset_fetch_error(buffer: bytes) -> int:
    """Return the group's error code, which is at the end of the response."""
    error: int = unpack_from(">h", buffer, len(buffer) - 2)[0]
    return error


def offset_fetch_response(buffer: bytes, topic: str) -> list[int]:
    """Return the committed offset of each partition; the offsets have no metadata."""
    at = 14 + len(topic)
    (count,) = unpack_from(">i", buffer, at)
    at += 4
    offsets = []
    for _ in range(count):
        _partition, offset, _epoch, metadata_bytes, error = unpack_from(">iqihh", buffer, at)
        _expect("OffsetFetch", error or metadata_bytes)
        offsets.append(offset)
        at += 20
    return offsets


def _string(text: str) -> bytes:
    return pack(">h", len(text)) + text.encode("ascii")


def _bytes(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


def _read_string(buffer: bytes, at: int) -> tuple[str, int]:
    (length,) = unpack_from(">h", buffer, at)
    end = at + 2 + max(length, 0)
    return bytes(buffer[at + 2 : end]).decode("ascii"), end


def _expect(what: str, error: int) -> None:
    if error:
        raise UnexpectedResponse(f"{what} was answered with error code {error}")
