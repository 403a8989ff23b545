"""What is encoded is decoded again, for every message in every version."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from flowstone.wire.messages import generated

PREFIX = b"header"
EXAMPLES = int(os.environ.get("FLOWSTONE_WIRE_EXAMPLES", "4"))  # of each message in each version


@given(data=st.data())
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
def test_a_message_survives_encoding_and_decoding(case, messages_of, data):
    message = data.draw(messages_of(case))
    assert case.decode(PREFIX + case.encode(message), len(PREFIX)) == message


def test_a_message_of_defaults_survives_encoding_and_decoding(case):
    message = getattr(generated, case.struct.name)()
    assert case.decode(case.encode(message)) == message
