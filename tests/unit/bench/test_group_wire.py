"""What the load program says about groups is what a broker's codec reads, and the reverse."""

from __future__ import annotations

from typing import Any

from bench import group_wire
from flowstone.wire import messages
from flowstone.wire.codec import request_decoder, response_encoder
from flowstone.wire.frames import parse_request_header, response_header


def read(request: bytes) -> Any:
    frame = memoryview(request)[4:]
    key, version, _correlation, _client, at = parse_request_header(frame, 0)
    assert version == group_wire.VERSIONS[key]
    return request_decoder(key, version)(frame, at)


def answer(key: int, response: Any) -> bytes:
    chunks = response_encoder(key, group_wire.VERSIONS[key])(response)
    return response_header(0, False) + b"".join(chunks)  # type: ignore[arg-type]


def test_a_join_names_the_group_the_member_and_its_subscription() -> None:
    request = read(group_wire.join_group("g", "t", "m"))
    assert (request.group_id, request.member_id, request.protocol_type) == ("g", "m", "consumer")
    assert [each.name for each in request.protocols] == ["fixed"]


def test_the_leader_hears_of_every_member() -> None:
    members = [messages.JoinGroupResponseMember(member_id=name, metadata=b"x") for name in ("a", "b")]
    response = messages.JoinGroupResponse(
        generation_id=7, protocol_name="p", leader="a", member_id="a", members=members
    )
    joined = group_wire.join_response(answer(group_wire.JOIN_GROUP, response))
    assert joined == group_wire.Joined(7, "a", "a", ["a", "b"])


def test_the_leader_deals_out_every_partition_once() -> None:
    request = read(group_wire.sync_group("g", group_wire.Joined(7, "a", "a", ["a", "b"]), "t", 5))
    assert [each.member_id for each in request.assignments] == ["a", "b"]
    assert [len(bytes(each.assignment)) - 17 for each in request.assignments] == [3 * 4, 2 * 4]
    assert group_wire.sync_response(answer(group_wire.SYNC_GROUP, messages.SyncGroupResponse(assignment=b"123"))) == 3


def test_a_commit_carries_an_offset_for_each_partition_and_its_errors_are_seen() -> None:
    (topic,) = read(group_wire.offset_commit("g", "t", [5, 6])).topics
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 5), (1, 6)]
    partitions = [messages.OffsetCommitResponsePartition(partition_index=0, error_code=code) for code in (0, 22)]
    response = messages.OffsetCommitResponse(
        topics=[messages.OffsetCommitResponseTopic(name="t", partitions=partitions)]
    )
    assert group_wire.offset_commit_errors(answer(group_wire.OFFSET_COMMIT, response), "t") == {0, 22}


def test_committed_offsets_are_read_back() -> None:
    assert list(read(group_wire.offset_fetch("g", "t", [0, 1])).topics[0].partition_indexes) == [0, 1]
    partitions = [
        messages.OffsetFetchResponsePartition(partition_index=index, committed_offset=offset, metadata="")
        for index, offset in enumerate((5, 6))
    ]
    topics = [messages.OffsetFetchResponseTopic(name="t", partitions=partitions)]
    told = answer(group_wire.OFFSET_FETCH, messages.OffsetFetchResponse(topics=topics, error_code=14))
    assert group_wire.offset_fetch_response(told, "t") == [5, 6]
    assert group_wire.offset_fetch_error(told) == 14
