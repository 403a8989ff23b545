"""Codecs in slices make the same bytes and messages as the others, and give way in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.errors import ProtocolError
from flowstone.wire import codec
from flowstone.wire.messages import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from flowstone.wire.primitives import NESTED_ELEMENTS_MAX, SLICE_ELEMENTS

OFFSET_FETCH, VERSION = 9, 7


def run(generator):
    """What it returns, and how often it yielded."""
    count = 0
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value, count
        count += 1


@given(data=st.data())
@settings(max_examples=5, deadline=None, derandomize=True)
def test_every_message_is_the_same_in_slices(case, messages_of, data):
    message = data.draw(messages_of(case))
    encoded = case.encode(message)
    if case.direction == "request":
        decoded, _ = run(codec.sliced_request_decoder(case.api_key, case.version)(memoryview(encoded), 0))
        assert decoded == case.decode(encoded)
    else:
        chunks, _ = run(codec.sliced_response_encoder(case.api_key, case.version)(message))
        assert b"".join(chunks) == encoded


def test_a_long_request_is_decoded_in_slices():
    count = 10 * SLICE_ELEMENTS
    topics = [OffsetFetchRequestTopic(name=f"t{index}", partition_indexes=[index]) for index in range(count)]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    encoded = b"".join(codec.request_encoder(OFFSET_FETCH, VERSION)(request))
    decoded, yielded = run(codec.sliced_request_decoder(OFFSET_FETCH, VERSION)(memoryview(encoded), 0))
    assert decoded == request
    assert yielded >= 10


def test_a_long_response_is_encoded_in_slices():
    partitions = [OffsetFetchResponsePartition(partition_index=index) for index in range(10 * SLICE_ELEMENTS)]
    response = OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=partitions)])
    chunks, yielded = run(codec.sliced_response_encoder(OFFSET_FETCH, VERSION)(response))
    assert b"".join(chunks) == b"".join(codec.response_encoder(OFFSET_FETCH, VERSION)(response))
    assert yielded >= 10


def test_what_is_malformed_is_refused_in_slices_too():
    with pytest.raises(ProtocolError):
        run(codec.sliced_request_decoder(OFFSET_FETCH, VERSION)(memoryview(b"\x02g\x03"), 0))


def test_numbers_within_arrays_count_among_the_nested_elements():
    half = [*range(NESTED_ELEMENTS_MAX // 2 + 1)]
    topics = [OffsetFetchRequestTopic(name=name, partition_indexes=half) for name in "ab"]
    request = OffsetFetchRequest(group_id="g", topics=topics)
    encoded = b"".join(codec.request_encoder(OFFSET_FETCH, VERSION)(request))
    with pytest.raises(ProtocolError, match="too many elements"):
        codec.request_decoder(OFFSET_FETCH, VERSION)(memoryview(encoded), 0)
