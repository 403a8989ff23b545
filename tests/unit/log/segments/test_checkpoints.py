from __future__ import annotations

import pytest

from flowstone.log.segments.checkpoints import (
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
    format_uuid,
    parse_uuid,
)
from flowstone.types import TopicPartition

OFFSETS = {TopicPartition("b", 0): 7, TopicPartition("a.b_c", 12): 0, TopicPartition("b", 1): 2**62}


def test_offsets_are_kafkas_text() -> None:
    assert encode_offsets(OFFSETS) == f"0\n3\na.b_c 12 0\nb 0 7\nb 1 {2**62}\n".encode()


def test_offsets_come_back() -> None:
    assert decode_offsets(encode_offsets(OFFSETS)) == OFFSETS
    assert decode_offsets(encode_offsets({})) == {}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"0\n", id="no count"),
        pytest.param(b"1\n0\n", id="another version"),
        pytest.param(b"0\n2\na 0 1\n", id="a line too few"),
        pytest.param(b"0\n1\na 0 12", id="cut inside the last line"),
        pytest.param(b"0\n2\na 0 1\na 0 2\n", id="a partition twice"),
        pytest.param(b"0\n1\na 0\n", id="a field too few"),
        pytest.param(b"0\n1\na 0 -1\n", id="a negative offset"),
        pytest.param(b"\xff\n", id="not text"),
    ],
)
def test_a_damaged_offset_checkpoint_is_refused(data: bytes) -> None:
    assert decode_offsets(data) is None


def test_a_topic_id_is_written_as_kafka_writes_it() -> None:
    assert encode_partition_metadata(bytes(range(16))) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"


def test_a_topic_id_comes_back() -> None:
    topic_id = bytes(range(240, 256))
    assert decode_partition_metadata(encode_partition_metadata(topic_id)) == topic_id
    assert parse_uuid(format_uuid(topic_id)) == topic_id


@pytest.mark.parametrize(
    "data", [b"", b"version: 0\n", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n", b"topic_id: !"]
)
def test_a_damaged_topic_id_is_refused(data: bytes) -> None:
    assert decode_partition_metadata(data) is None
