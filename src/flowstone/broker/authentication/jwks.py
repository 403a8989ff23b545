"""The keys with which tokens are signed (JWKS), from a file or a URL, read again hourly and for an unknown key.

Reading happens in a worker thread, once at a time: logins that need the keys wait for the same reading. If it fails,
the former keys stay in use. Before the first success no token is valid.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.oauthbearer import Expectations, UnknownKey, ValidToken, validate
from flowstone.broker.loop.login_checks import Asker
from flowstone.broker.loop.workers import Workers
from flowstone.config import BrokerConfig
from flowstone.errors import ConfigError
from flowstone.ports.clock import Clock
from flowstone.ports.documents import read_document

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

SETTING = "sasl.oauthbearer.jwks.endpoint.url"
JWKS_BYTES_MAX = 1 << 20
# An unknown key makes the broker read the JWKS again, but not more often than this.
UNKNOWN_KEY_INTERVAL_S = 10.0
# After keys could not be read and there are none, they are read again when a token comes, but not more often than this.
RETRY_INTERVAL_S = 1.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TokenVerifier:
    """Checks tokens against the JWKS."""

    def __init__(self, url: str, refresh_ms: int, expected: Expectations, workers: Workers, clock: Clock) -> None:
        """Create the verifier without reading the JWKS, unless it is a file."""
        self._url, self._refresh_s, self._expected = url, refresh_ms / 1000, expected
        self._workers, self._clock = workers, clock
        self._keys: KeySet | None = None
        self._read_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        if urlsplit(url).scheme == "file":
            self._keys = _parse(read_document(url, JWKS_BYTES_MAX))

    async def verify(self, token: str, asker: Asker) -> ValidToken:
        """Return the user and expiry of the token. Raises LoginRefused if it is not valid."""
        age_s = self._clock.monotonic() - self._read_at_s
        if age_s > self._refresh_s or (self._keys is None and age_s > RETRY_INTERVAL_S):
            await self._read()
        elif self._keys is None and self._reading is not None:
            await asyncio.shield(self._reading)
        keys = self._keys
        try:
            return await self._validate(token, asker, keys)
        except UnknownKey:
            is_recent = self._clock.monotonic() - self._read_at_s < UNKNOWN_KEY_INTERVAL_S
            if self._keys is keys and self._reading is None and is_recent:
                raise
        if self._keys is keys:  # nobody has read them meanwhile
            await self._read()
        return await self._validate(token, asker, self._keys)

    async def _validate(self, token: str, asker: Asker, keys: KeySet | None) -> ValidToken:
        if keys is None:
            raise LoginRefused("the keys of tokens could not be read")
        now_s = self._clock.time_ms() // 1000
        return await self._workers.check_login(lambda: validate(token, keys, self._expected, now_s), asker)

    async def _read(self) -> None:
        """Read the keys, or wait for those who do."""
        if self._reading is None:
            self._read_at_s = self._clock.monotonic()
            self._reading = asyncio.ensure_future(self._read_once())
        await asyncio.shield(self._reading)

    async def _read_once(self) -> None:
        try:
            self._keys = await self._workers.read(lambda: _parse(read_document(self._url, JWKS_BYTES_MAX)))
        except (OSError, ValueError, ConfigError) as error:
            logger.error("%s: the keys of tokens cannot be read: %s", SETTING, error)
        finally:
            self._reading = None


def _parse(text: bytes) -> KeySet:
    """Return the public keys of a JWKS. Raises ConfigError if it is malformed or has none."""
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    try:
        document: Any = json.loads(text)
        usable = [each for each in document["keys"] if each.get("kty") != "oct" and each.get("use", "sig") == "sig"]
        keys = KeySet.import_key_set({"keys": usable})
    except (ValueError, KeyError, TypeError, AttributeError, JoseError):
        raise ConfigError(f"{SETTING}: the document is not a JWKS") from None
    if not keys.keys:
        raise ConfigError(f"{SETTING}: the document has no public keys for signatures")
    return keys


def token_verifier(config: BrokerConfig, workers: Workers, clock: Clock) -> TokenVerifier:
    """Return the verifier that the settings describe. Raises ConfigError if one that must be set is not."""
    required: dict[str, Any] = {
        SETTING: config.sasl_oauthbearer_jwks_endpoint_url,
        "sasl.oauthbearer.expected.issuer": config.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.expected.audience": config.sasl_oauthbearer_expected_audience,
    }
    missing = [name for name, value in required.items() if not value]
    if missing:
        raise ConfigError(f"{missing[0]}: OAUTHBEARER needs it: without it anyone's token would be accepted")
    url = urlsplit(config.sasl_oauthbearer_jwks_endpoint_url)
    if url.scheme not in ("https", "file") and not (url.scheme == "http" and url.hostname in _LOOPBACK):
        raise ConfigError(f"{SETTING}: expected an https URL, or file:///PATH; other keys could be put in their place")
    expected = Expectations(
        config.sasl_oauthbearer_expected_issuer,
        config.sasl_oauthbearer_expected_audience,
        config.sasl_oauthbearer_sub_claim_name,
        config.sasl_oauthbearer_clock_skew_seconds,
    )
    try:
        return TokenVerifier(
            config.sasl_oauthbearer_jwks_endpoint_url,
            config.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            expected,
            workers,
            clock,
        )
    except OSError as error:
        raise ConfigError(f"{SETTING}: the file cannot be read: {error.strerror or error}") from None
