"""Memory for responses: used again when nobody looks at it, and only then."""

from __future__ import annotations

from flowstone.client.response_buffers import BUFFERS_KEPT_MAX, ReceiveBuffers

BUFFER_BYTES = 1 << 20


def test_a_buffer_is_used_again_once_nobody_holds_a_view_of_it():
    buffers = ReceiveBuffers(BUFFER_BYTES)
    first = buffers.take(500_000)
    memory = first.obj
    del first
    assert buffers.take(900_000).obj is memory


def test_a_buffer_with_a_view_of_a_view_is_left_alone():
    buffers = ReceiveBuffers(BUFFER_BYTES)
    held = buffers.take(BUFFER_BYTES)[10:20]
    held[:] = b"0123456789"
    buffers.take(BUFFER_BYTES)[:] = bytes(BUFFER_BYTES)
    assert held == b"0123456789"


def test_more_may_be_taken_than_are_kept():
    buffers = ReceiveBuffers(BUFFER_BYTES)
    taken = [buffers.take(BUFFER_BYTES) for _ in range(BUFFERS_KEPT_MAX + 2)]
    assert len({id(view.obj) for view in taken}) == BUFFERS_KEPT_MAX + 2


def test_what_is_larger_than_a_buffer_has_memory_of_its_own():
    assert len(ReceiveBuffers(BUFFER_BYTES).take(BUFFER_BYTES + 1)) == BUFFER_BYTES + 1
