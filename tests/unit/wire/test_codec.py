"""The codec's contract, and the traps of the protocol that it can show."""

from __future__ import annotations

import struct

import pytest

from flowstone.errors import ProtocolError
from flowstone.wire import codec
from flowstone.wire.messages import (
    ApiVersionsResponse,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponseLeader,
    FetchResponsePartition,
    FetchResponseTopic,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from flowstone.wire.primitives import (
    ARRAY_LENGTH_MAX,
    NESTED_ELEMENTS_MAX,
    PRODUCE_ELEMENTS_MAX,
    STRING_LENGTH_MAX,
    TAGGED_FIELDS_MAX,
)

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS, DELETE_TOPICS, DESCRIBE_TOPIC_PARTITIONS = (
    0,
    1,
    3,
    10,
    18,
    20,
    75,
)
METADATA_FLEXIBLE = 9


class FileSlice:
    """What the log hands out instead of bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def fetch_response(*records: object) -> FetchResponse:
    partitions = [FetchResponsePartition(partition_index=index, records=each) for index, each in enumerate(records)]
    return FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=partitions)])


# Records


def test_produced_records_are_a_view_into_the_frame():
    partition = ProduceRequestPartition(records=b"batch")
    request = ProduceRequest(topic_data=[ProduceRequestTopic(name="t", partition_data=[partition])])
    frame = b"".join(codec.request_encoder(PRODUCE, 9)(request))
    decoded = codec.request_decoder(PRODUCE, 9)(memoryview(frame), 0)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_fetched_records_leave_by_reference_between_joined_bytes(version):
    first, second = FileSlice(1000), memoryview(bytes(70_000))
    chunks = codec.response_encoder(FETCH, version)(fetch_response(first, second))
    assert [type(chunk) for chunk in chunks] == [bytes, FileSlice, bytes, memoryview] + (
        [bytes] if version >= 12 else []
    )
    assert chunks[1] is first
    assert chunks[3] is second


@pytest.mark.parametrize("version", [11, 12])
def test_null_and_empty_records_add_no_chunk(version):
    chunks = codec.response_encoder(FETCH, version)(fetch_response(None, b"", FileSlice(0)))
    assert [type(chunk) for chunk in chunks] == [bytes]
    decoded = codec.response_decoder(FETCH, version)(memoryview(chunks[0]), 0)
    assert [partition.records for partition in decoded.responses[0].partitions] == [None, b"", b""]


@pytest.mark.parametrize("size_bytes", [0x7E, 0x7F, 0x3FFE, 0x3FFF, 0x1FFFFF, 0x200000])
def test_the_compact_length_of_records_is_right_at_every_width(size_bytes):
    chunks = codec.response_encoder(FETCH, 12)(fetch_response(bytes(size_bytes)))
    decoded = codec.response_decoder(FETCH, 12)(memoryview(b"".join(chunks)), 0)
    assert len(decoded.responses[0].partitions[0].records) == size_bytes


def test_a_body_without_fields_has_no_chunks():
    request = codec.request_decoder(API_VERSIONS, 0)(memoryview(b""), 0)
    assert codec.request_encoder(API_VERSIONS, 0)(request) == []


# Versions


def test_a_field_that_the_version_lacks_holds_its_default():
    body = b"".join(codec.request_encoder(FETCH, 4)(FetchRequest(session_epoch=7, rack_id="r")))
    decoded = codec.request_decoder(FETCH, 4)(memoryview(body), 0)
    assert (decoded.session_epoch, decoded.rack_id, decoded.replica_state) == (-1, "", None)


def test_metadata_version_0_cannot_say_null_and_later_ones_can():
    assert codec.request_encoder(METADATA, 1)(MetadataRequest(topics=None)) == [b"\xff\xff\xff\xff"]
    with pytest.raises(ProtocolError):
        codec.request_decoder(METADATA, 0)(memoryview(b"\xff\xff\xff\xff"), 0)


@pytest.mark.parametrize(("api_key", "version"), [(999, 0), (PRODUCE, 2), (PRODUCE, 14), (FETCH, -1)])
def test_an_unknown_api_or_version_is_refused(api_key, version):
    with pytest.raises(ProtocolError):
        codec.request_decoder(api_key, version)


def test_the_unsupported_version_answer_is_a_version_0_body():
    body = codec.response_encoder(API_VERSIONS, 0)(ApiVersionsResponse(error_code=35))
    assert body == [b"\x00\x23\x00\x00\x00\x00"]


def test_codecs_are_compiled_once():
    assert codec.request_decoder(PRODUCE, 9) is codec.request_decoder(PRODUCE, 9)


# Nullable structs (KIP-893)


@pytest.mark.parametrize("cursor", [None, DescribeTopicPartitionsCursor(topic_name="t", partition_index=4)])
def test_a_nullable_struct_is_told_by_its_marker(cursor):
    request = DescribeTopicPartitionsRequest(cursor=cursor)
    body = b"".join(codec.request_encoder(DESCRIBE_TOPIC_PARTITIONS, 0)(request))
    assert body == b"\x01\x00\x00\x07\xd0" + (b"\xff" if cursor is None else b"\x01\x02t\x00\x00\x00\x04\x00") + b"\x00"
    assert codec.request_decoder(DESCRIBE_TOPIC_PARTITIONS, 0)(memoryview(body), 0) == request


# Tagged fields


def metadata_body(tags: bytes) -> memoryview:
    """A Metadata 9 request for all topics whose tag section is `tags`."""
    return memoryview(b"\x00\x01\x00\x00" + tags)


def test_unknown_tagged_fields_are_skipped():
    decoded = codec.request_decoder(METADATA, METADATA_FLEXIBLE)(metadata_body(b"\x02\x07\x03abc\x90\x4e\x00"), 0)
    assert decoded == MetadataRequest(topics=None)


def test_unknown_tagged_fields_beside_known_ones_are_skipped():
    partition = FetchResponsePartition(current_leader=FetchResponseLeader(leader_id=1, leader_epoch=2), records=None)
    response = FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=[partition])])
    body = b"".join(codec.response_encoder(FETCH, 12)(response))
    known = b"\x01\x01\x09" + struct.pack(">iix", 1, 2)
    assert known in body
    body = body.replace(known, b"\x02" + known[1:] + b"\x05\x02hi")
    assert codec.response_decoder(FETCH, 12)(memoryview(body), 0) == response


def test_a_default_value_is_not_written_as_a_tagged_field():
    assert codec.response_encoder(API_VERSIONS, 3)(ApiVersionsResponse())[0].endswith(b"\x00")
    tagged = codec.response_encoder(API_VERSIONS, 3)(ApiVersionsResponse(finalized_features_epoch=5))
    assert tagged[0].endswith(b"\x01\x01\x08" + struct.pack(">q", 5))


def test_more_tagged_fields_than_the_limit_are_refused():
    at_limit = bytes([TAGGED_FIELDS_MAX]) + b"\x63\x00" * TAGGED_FIELDS_MAX
    codec.request_decoder(METADATA, METADATA_FLEXIBLE)(metadata_body(at_limit), 0)
    beyond = bytes([TAGGED_FIELDS_MAX + 1]) + b"\x63\x00" * (TAGGED_FIELDS_MAX + 1)
    with pytest.raises(ProtocolError, match="tagged fields"):
        codec.request_decoder(METADATA, METADATA_FLEXIBLE)(metadata_body(beyond), 0)


def test_a_tagged_field_that_runs_past_the_frame_is_refused():
    with pytest.raises(ProtocolError, match="past the end"):
        codec.request_decoder(METADATA, METADATA_FLEXIBLE)(metadata_body(b"\x01\x07\x7fabc"), 0)


def test_a_known_tagged_field_of_the_wrong_size_is_refused():
    body = b"".join(codec.response_encoder(API_VERSIONS, 3)(ApiVersionsResponse(finalized_features_epoch=5)))
    with pytest.raises(ProtocolError, match="as long as it says"):
        codec.response_decoder(API_VERSIONS, 3)(memoryview(body.replace(b"\x01\x01\x08", b"\x01\x01\x07")), 0)


# Lengths


def test_bytes_after_the_body_are_tolerated_as_kafka_does():
    assert codec.request_decoder(METADATA, 1)(memoryview(b"\xff\xff\xff\xff trailing"), 0) == MetadataRequest(
        topics=None
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x7f\xff\xff\xff", id="more elements than bytes left"),
        pytest.param(b"\xff\xff\xff\xfe", id="negative"),
        pytest.param(b"\x00\x00\x00\x01\xff\xff", id="null string"),
        pytest.param(b"\x00\x00\x00\x01\x80\x00", id="negative string length"),
        pytest.param(b"\x00\x00\x00\x01\x00\x05abc", id="truncated string"),
        pytest.param(b"\x00\x00\x00\x01\x00\x02\xff\xfe", id="not UTF-8"),
        pytest.param(b"\x00\x00\x00", id="truncated length"),
    ],
)
def test_a_bad_length_or_text_is_refused(body):
    with pytest.raises(ProtocolError):
        codec.request_decoder(METADATA, 1)(memoryview(body), 0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x02\x00", id="null string"),
        pytest.param(b"\xff\xff\xff\xff\x0f", id="array of 4 G elements"),
        pytest.param(b"\xff\xff\xff\xff\xff\x01", id="varint of six bytes"),
        pytest.param(b"\xff\xff\xff\xff\x1f", id="varint beyond 32 bits"),
        pytest.param(b"\x80\x80", id="varint without end"),
    ],
)
def test_a_bad_compact_length_is_refused(body):
    with pytest.raises(ProtocolError):
        codec.request_decoder(METADATA, METADATA_FLEXIBLE)(memoryview(body), 0)


def test_a_padded_varint_is_accepted_as_kafka_does():
    body = metadata_body(b"\x00")
    padded = memoryview(b"\x80\x00" + bytes(body[1:]))
    assert codec.request_decoder(METADATA, METADATA_FLEXIBLE)(padded, 0) == MetadataRequest(topics=None)


def test_a_compact_string_longer_than_the_old_encoding_allows_is_refused():
    longest = MetadataResponse(topics=[MetadataResponseTopic(name="x" * STRING_LENGTH_MAX)])
    body = b"".join(codec.response_encoder(METADATA, METADATA_FLEXIBLE)(longest))
    assert codec.response_decoder(METADATA, METADATA_FLEXIBLE)(memoryview(body), 0) == longest
    too_long = MetadataResponse(topics=[MetadataResponseTopic(name="x" * (STRING_LENGTH_MAX + 1))])
    body = b"".join(codec.response_encoder(METADATA, METADATA_FLEXIBLE)(too_long))
    with pytest.raises(ProtocolError, match="bad length"):
        codec.response_decoder(METADATA, METADATA_FLEXIBLE)(memoryview(body), 0)


def test_more_elements_than_the_limit_are_refused_even_if_the_bytes_are_there():
    count = ARRAY_LENGTH_MAX + 1
    body = struct.pack(">i", count) + bytes(2 * count)
    with pytest.raises(ProtocolError, match="elements"):
        codec.request_decoder(DELETE_TOPICS, 1)(memoryview(body), 0)


@pytest.mark.parametrize("per_topic", [100, 1000])
def test_a_request_has_only_so_many_elements_in_the_arrays_of_its_arrays(per_topic: int):
    def request(elements: int) -> bytes:
        partitions = [FetchRequestPartition(partition=0)] * per_topic
        topics = [FetchRequestTopic(topic="t", partitions=partitions)] * (elements // per_topic)
        return b"".join(codec.request_encoder(FETCH, 11)(FetchRequest(topics=topics)))

    decode = codec.request_decoder(FETCH, 11)
    assert len(decode(memoryview(request(NESTED_ELEMENTS_MAX)), 0).topics) == NESTED_ELEMENTS_MAX // per_topic
    with pytest.raises(ProtocolError, match="too many elements"):
        decode(memoryview(request(NESTED_ELEMENTS_MAX + per_topic)), 0)


@pytest.mark.parametrize("batches_per_topic", [0, 1, 1000])
def test_a_produce_has_only_so_many_topics_and_batches_together(batches_per_topic: int):
    def request(elements: int) -> bytes:
        partitions = [ProduceRequestPartition(index=0, records=None)] * batches_per_topic
        topics = [ProduceRequestTopic(name="t", partition_data=partitions)] * (elements // (1 + batches_per_topic))
        return b"".join(codec.request_encoder(0, 9)(ProduceRequest(topic_data=topics)))

    decode = codec.request_decoder(0, 9)
    decode(memoryview(request(PRODUCE_ELEMENTS_MAX)), 0)
    with pytest.raises(ProtocolError, match="too many elements"):
        decode(memoryview(request(PRODUCE_ELEMENTS_MAX + 1 + batches_per_topic)), 0)


def test_an_array_longer_than_the_unchecked_length_is_read():
    names = [f"topic-{number}" for number in range(20_000)]
    request = codec.request_decoder(FIND_COORDINATOR, 4)(memoryview(b"\x00\x01\x00"), 0)
    request.coordinator_keys = names
    body = b"".join(codec.request_encoder(FIND_COORDINATOR, 4)(request))
    assert codec.request_decoder(FIND_COORDINATOR, 4)(memoryview(body), 0).coordinator_keys == names
