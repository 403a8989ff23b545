"""SCRAM (RFC 5802, with SHA-256 and SHA-512): the messages of both sides, and stored credentials. Pure.

The server knows no password: it compares the client's proof with `stored_key`, and proves that it knows `server_key`.
The only expensive step is `salted_password` (PBKDF2), which the client does; a server does it only to check a password
that it was told.

As in Kafka, user names and passwords are UTF-8 without further preparation, and there is no channel binding.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from enum import IntEnum
from typing import NamedTuple

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
# What a client derives a key with at most: a false server must not keep it busy.
CLIENT_ITERATIONS_MAX = 1_000_000
NONCE_CHARACTERS = 32
# A client's nonce longer than this only costs memory.
NONCE_CHARACTERS_MAX = 512
# The longest message of a client. Names have 255 characters, so a longer one only costs time.
MESSAGE_BYTES_MAX = 8 << 10
_NO_BINDING = b"biws"  # base64 of "n,,"
_VALUE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")


class ScramMechanism(IntEnum):
    """The mechanisms, with the numbers of Kafka's requests."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{256 if self is ScramMechanism.SHA_256 else 512}"

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64


MECHANISMS = {each.sasl_name: each for each in ScramMechanism}


class ScramError(ValueError):
    """A SCRAM message is malformed or its proof is wrong. The reason is for logs, not for peers."""


class ScramCredential(NamedTuple):
    """The stored credential of one user for one mechanism: no password, but its holder can pose as the broker."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return the password's key; takes milliseconds, without the interpreter's lock."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, _hmac(mechanism, salted, b"Server Key"), iterations)


def has_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return whether the credential is that of the password; takes milliseconds, like `salted_password`."""
    salted = salted_password(mechanism, password, credential.salt, credential.iterations)
    found = credential_of(mechanism, salted, credential.salt, credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


SALT_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyz"
SALT_CHARACTERS = 25


def salt_text(random: bytes) -> bytes:
    """Return a salt in the form that Kafka's tools give it, text of base 36, from at least 25 random bytes."""
    return text_of(random[:SALT_CHARACTERS])


def text_of(random: bytes) -> bytes:
    return bytes(SALT_ALPHABET[each % len(SALT_ALPHABET)] for each in random)


class ScramServer:
    """The server's side of one login: `first`, then `final`; both return what is sent to the client."""

    def __init__(self, mechanism: ScramMechanism, nonce: str) -> None:
        self._mechanism, self._nonce = mechanism, nonce
        self._client_first_bare = self._server_first = b""
        self._binding = b""
        self._credential: ScramCredential | None = None
        self.user = ""
        # The extensions of the client's first message, such as tokenauth.
        self.extensions: dict[str, str] = {}

    def parse_first(self, message: bytes) -> None:
        """Record the user and the extensions that the client's first message names. Raises ScramError."""
        _check_length(message)
        header, bare = _split_header(message)
        authorization, fields = _name(header.get("a", "")), _fields(bare.decode("utf-8", "strict"))
        if "n" not in fields or "r" not in fields or "m" in fields:
            raise ScramError("the first message has no user or nonce")
        self.user = _name(fields.pop("n"))
        if authorization and authorization != self.user:
            raise ScramError("the client asks to act as another user")
        nonce = fields.pop("r")
        if not _VALUE.fullmatch(nonce) or len(nonce) > NONCE_CHARACTERS_MAX:
            raise ScramError("the client's nonce is malformed")
        self._nonce = nonce + self._nonce
        self.extensions = fields
        self._client_first_bare = bare
        self._binding = b64encode(message[: len(message) - len(bare)])

    def challenge(self, credential: ScramCredential) -> bytes:
        """Return the first message to the client, for the user's credential or an invented one."""
        self._credential = credential
        salt = b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        return self._server_first

    def final(self, message: bytes) -> bytes:
        """Return the server's proof. Raises ScramError if the client does not know the password."""
        credential = self._credential
        assert credential is not None
        _check_length(message)
        without_proof, separator, proof_text = message.rpartition(b",p=")
        fields = _fields(without_proof.decode("utf-8", "strict"))
        if not separator or fields.get("c", "").encode() != self._binding:
            raise ScramError("the final message has no proof, or another channel binding")
        if not hmac.compare_digest(fields.get("r", "").encode(), self._nonce.encode()):
            raise ScramError("the final message has another nonce")
        signed = b",".join((self._client_first_bare, self._server_first, without_proof))
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        client_key = _xor(_base64(proof_text), signature)
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise ScramError("the password is wrong")
        return b"v=" + b64encode(_hmac(self._mechanism, credential.server_key, signed))


class ScramChallenge(NamedTuple):
    """The server's first message: what the client derives its key from."""

    salt: bytes
    iterations: int


class ScramClient:
    """The client's side of one login: `first`, `parse_challenge`, `final`, `check`, in this order."""

    def __init__(self, mechanism: ScramMechanism, user: str, nonce: str, extensions: str = "") -> None:
        self._mechanism, self._nonce = mechanism, nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}{extensions}".encode()
        self._server_first = b""
        self._server_signature = b""

    def first(self) -> bytes:
        return b"n,," + self._first_bare

    def parse_challenge(self, message: bytes) -> ScramChallenge:
        """Return the challenge. Raises ScramError if it is malformed or does not continue this login."""
        fields = _fields(message.decode("utf-8", "strict"))
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue the client's")
        text = fields.get("i", "")
        iterations = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
            raise ScramError(f"iterations must be from {ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX}")
        self._nonce, self._server_first = nonce, message
        return ScramChallenge(_base64(fields.get("s", "").encode()), iterations)

    def final(self, salted: bytes) -> bytes:
        """Return the client's proof for its salted password."""
        without_proof = b"c=" + _NO_BINDING + b",r=" + self._nonce.encode()
        signed = b",".join((self._first_bare, self._server_first, without_proof))
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        proof = _xor(client_key, _hmac(self._mechanism, stored_key, signed))
        self._server_signature = _hmac(self._mechanism, _hmac(self._mechanism, salted, b"Server Key"), signed)
        return without_proof + b",p=" + b64encode(proof)

    def check(self, message: bytes) -> None:
        """Raise ScramError if the server does not prove that it knows the credential."""
        found = _fields(message.decode("utf-8", "strict"))
        if not hmac.compare_digest(_base64(found.get("v", "").encode()), self._server_signature):
            raise ScramError("the server does not know the user's credential")


def _check_length(message: bytes) -> None:
    if len(message) > MESSAGE_BYTES_MAX:
        raise ScramError(f"a message of {len(message)} bytes; the limit is {MESSAGE_BYTES_MAX}")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise ScramError("the proof has another length")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _base64(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("a value is not base64") from None


def _split_header(message: bytes) -> tuple[dict[str, str], bytes]:
    """Return the authorization part of the client's first message, and the rest, which is signed."""
    parts = message.split(b",", 2)
    if len(parts) < 3 or parts[0] not in (b"n", b"y"):
        raise ScramError("the first message asks for channel binding, or is malformed")
    return _fields(parts[1].decode("utf-8", "strict")) if parts[1] else {}, parts[2]


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if not separator or not name or name in fields:
            raise ScramError("a message is not a list of name=value")
        fields[name] = value
    return fields


def _name(text: str) -> str:
    """Return a user name without its escapes."""
    if re.search("=(?!2C|3D)", text):
        raise ScramError("a name has '=' that is no escape")
    return text.replace("=2C", ",").replace("=3D", "=")
