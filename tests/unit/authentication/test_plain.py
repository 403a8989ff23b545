from __future__ import annotations

import pytest

from flowstone.authentication import plain


def test_a_message_has_a_user_and_a_password():
    assert plain.parse(plain.encode("alice", "pass word")) == ("alice", "pass word")
    assert plain.parse(b"alice\0alice\0x").user == "alice"
    assert "x1" not in repr(plain.parse(b"\0alice\0x1"))


@pytest.mark.parametrize(
    "message",
    [b"", b"alice", b"\0alice\0", b"\0\0x", b"root\0alice\0x", b"\0alice\0x\0y", b"\0a\0\xff", b"\0a\0" + b"x" * 5000],
)
def test_a_malformed_message_is_refused_without_repeating_it(message):
    with pytest.raises(ValueError, match=r"is|not") as caught:
        plain.parse(message)
    assert "alice" not in str(caught.value)
