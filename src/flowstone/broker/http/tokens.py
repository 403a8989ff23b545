"""Logins of the HTTP port: tokens that programs send as `Authorization: Bearer TOKEN`.

The file of `http.tokens.file` has a line `user=token` for each; only its owner may read it. The user's access rules
apply to the pages. Tokens are compared by their hashes, so that the time of a comparison tells nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from flowstone.broker.requests.session import Principal
from flowstone.config.properties import parse_properties
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.secret_files import read_secret

SETTING = "http.tokens.file"
TOKEN_CHARACTERS_MIN = 16
_SCHEME = "bearer "


class HttpTokens:
    def __init__(self, tokens: Mapping[str, str]) -> None:
        """Take the tokens by user."""
        self._users = {_hash(token): Principal("User", user) for user, token in tokens.items()}

    def principal(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal | None:
        """Return the principal of the request's token, or None if the token is missing or wrong."""
        for name, value in headers:
            if name == b"authorization":
                text = value.decode("latin-1").strip()
                if text[: len(_SCHEME)].lower() == _SCHEME:
                    return self._users.get(_hash(text[len(_SCHEME) :].strip()))
        return None


def read_tokens(path: str) -> HttpTokens:
    """Return the tokens in a file. Raises StartupError or ConfigError, without any of them, if it is unusable."""
    try:
        text = read_secret(path)
    except PermissionError as error:
        raise StartupError(f"{SETTING}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise StartupError(f"{SETTING}: {path} cannot be read: {reason}") from None
    try:
        tokens = parse_properties(text, path)
    except ConfigError:
        raise ConfigError(f"{SETTING}: a line of {path} is not user=token") from None
    if not tokens or any(len(token) < TOKEN_CHARACTERS_MIN for token in tokens.values()):
        raise ConfigError(
            f"{SETTING}: {path} needs tokens of at least {TOKEN_CHARACTERS_MIN} characters, as user=token"
        )
    return HttpTokens(tokens)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
