"""SASL PLAIN (RFC 4616): a user name and a password in one message. Only safe over TLS."""

from __future__ import annotations

from typing import NamedTuple

# Longer names and passwords are no typing errors.
PART_BYTES_MAX = 4096


class PlainMessage(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainMessage(user={self.user!r})"


def encode(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def parse(message: bytes) -> PlainMessage:
    """Return the user and the password. Raises ValueError, without either of them, if the message is malformed."""
    parts = message.split(b"\0", 3)
    if len(parts) != 3 or max(map(len, parts)) > PART_BYTES_MAX:
        raise ValueError("the message is not authorization, user and password")
    try:
        authorization, user, password = (each.decode() for each in parts)
    except UnicodeDecodeError:
        raise ValueError("the message is not UTF-8") from None
    if not user or not password:
        raise ValueError("the user or the password is empty")
    if authorization and authorization != user:
        raise ValueError("the client asks to act as another user")
    return PlainMessage(user, password)
