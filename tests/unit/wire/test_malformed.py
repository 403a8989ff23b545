"""Whatever a peer sends, a decoder gives a message or a `ProtocolError`, in bounded memory and time."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.errors import ProtocolError
from flowstone.wire import frames

MUTATIONS = 30


def decode_or_refuse(case, data):
    with contextlib.suppress(ProtocolError):
        case.decode(data)


def test_random_bytes_give_a_message_or_a_protocol_error(case):
    chance = random.Random(str(case))
    for _ in range(MUTATIONS):
        decode_or_refuse(case, chance.randbytes(chance.randrange(200)))


@given(data=st.data())
@settings(max_examples=2, deadline=None, derandomize=True)
def test_mutated_messages_give_a_message_or_a_protocol_error(case, messages_of, data):
    encoded = case.encode(data.draw(messages_of(case)))
    chance = random.Random(encoded)
    for _ in range(MUTATIONS):
        mutated = bytearray(encoded)
        for _ in range(chance.randrange(1, 4)):
            if mutated:
                mutated[chance.randrange(len(mutated))] = chance.choice(
                    (0x00, 0x01, 0x7F, 0x80, 0xFF, chance.randrange(256))
                )
        decode_or_refuse(case, bytes(mutated[: chance.randrange(len(mutated) + 1)]))


@given(data=st.data())
@settings(max_examples=2, deadline=None, derandomize=True)
def test_a_truncated_message_is_refused(case, messages_of, data):
    encoded = case.encode(data.draw(messages_of(case)))
    for size in {0, len(encoded) // 2, len(encoded) - 1}:
        if 0 <= size < len(encoded):
            with pytest.raises(ProtocolError):
                case.decode(encoded[:size])


def test_a_huge_frame_of_any_byte_takes_memory_in_proportion_to_its_size(case):
    size_bytes = 20_000
    for byte in (0x01, 0x02, 0x7F, 0xFF):
        tracemalloc.start()
        decode_or_refuse(case, bytes([byte]) * size_bytes)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 100 * size_bytes


@given(st.binary(max_size=60))
def test_a_random_request_header_is_read_or_refused(data):
    try:
        header = frames.parse_request_header(memoryview(data), 0)
    except ProtocolError:
        return
    assert 0 <= header.body_position <= len(data)
