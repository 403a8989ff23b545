"""Frames that real clients sent (recorded by `golden/record.py`) are understood to the last byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.wire import codec, frames
from flowstone.wire.apis import APIS
from flowstone.wire.messages import FetchRequest, ProduceRequest

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.txt"))
FRAMES = {
    f"{file.stem}-{name}-v{version}": (name, int(version), bytes.fromhex(data))
    for file in GOLDEN
    for name, version, data in map(str.split, file.read_text(encoding="utf-8").splitlines())
}


def decode_frame(frame: bytes):
    view = memoryview(frame)
    header = frames.parse_request_header(view, 0)
    return header, codec.request_decoder(header.api_key, header.api_version)(view, header.body_position)


@pytest.mark.parametrize(("name", "version", "frame"), FRAMES.values(), ids=FRAMES.keys())
def test_a_recorded_frame_is_reproduced_byte_for_byte(name, version, frame):
    header, message = decode_frame(frame)
    assert (APIS[header.api_key].name, header.api_version) == (name, version)
    encoded_header = frames.encode_request_header(*header[:4])
    assert encoded_header + b"".join(codec.request_encoder(header.api_key, version)(message)) == frame


def test_librdkafka_names_itself_in_the_header_and_sends_a_v2_batch():
    header, message = decode_frame(FRAMES["confluent-kafka-Produce-v10"][2])
    assert header.client_id == "golden"
    assert isinstance(message, ProduceRequest)
    assert (message.acks, message.topic_data[0].name) == (-1, "golden")
    records = message.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records[16] == 2


def test_librdkafka_asks_by_topic_id_in_the_newest_fetch():
    _, message = decode_frame(FRAMES["confluent-kafka-Fetch-v16"][2])
    assert isinstance(message, FetchRequest)
    assert message.topics[0].topic_id == bytes(range(16))
    assert message.topics[0].topic == ""
