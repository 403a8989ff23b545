"""The delegation tokens that this broker knows: by id, by HMAC, and as credentials of logins.

The tokens are in the cluster's metadata; their HMACs are derived from the secret of this broker's settings and kept in
memory. Without a secret there are no tokens (`open_tokens` returns None).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowstone.authentication.delegation_tokens import DelegationToken, TokenSecret
from flowstone.authentication.scram import ScramCredential, ScramMechanism
from flowstone.cluster.decisions.registration import controller_id
from flowstone.cluster.decisions.token_changes import REMOVED_AT_ONCE_MAX, TokenLifetimes, remove_expired
from flowstone.cluster.image.records import DelegationTokensChanged
from flowstone.errors import ApiError, ConfigError, ErrorCode, StorageFault

if TYPE_CHECKING:
    from flowstone.broker.loop.login_checks import Asker
    from flowstone.broker.loop.workers import Workers
    from flowstone.cluster.image.cluster_image import ClusterImage
    from flowstone.cluster.image.records import MetadataRecord
    from flowstone.cluster.metadata import Metadata
    from flowstone.config import BrokerConfig
    from flowstone.ports.clock import Clock, Timer

logger = logging.getLogger(__name__)

SECRET_CHARACTERS_MIN = 16
# Credentials of tokens that were used to log in; when there are more, all are derived again.
CREDENTIALS_MAX = 10_000


class TokenRegistry:
    def __init__(self, config: BrokerConfig, metadata: Metadata, workers: Workers, clock: Clock) -> None:
        """Create the registry. Raises ConfigError if the secret is too short to be one."""
        if len(config.delegation_token_secret_key) < SECRET_CHARACTERS_MIN:
            raise ConfigError(
                f"delegation.token.secret.key: it must have at least {SECRET_CHARACTERS_MIN} characters, since every "
                "holder of a token can try to guess it; use for instance `openssl rand -base64 32`"
            )
        self._secret = TokenSecret(config.delegation_token_secret_key)
        self._metadata, self._workers, self._clock = metadata, workers, clock
        self.lifetimes = TokenLifetimes(config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms)
        self._ids_by_hmac = {self._secret.hmac(token_id): token_id for token_id in metadata.image.delegation_tokens}
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        metadata.on_change(self._follow)

    def hmac(self, token_id: str) -> bytes:
        return self._secret.hmac(token_id)

    def id_of(self, token_hmac: bytes) -> str:
        """Return the id of the token with this HMAC. Raises ApiError if there is none."""
        token_id = self._ids_by_hmac.get(token_hmac)
        if token_id is None:
            raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token_id

    def valid(self, token_id: str) -> DelegationToken | None:
        """Return the token, or None if it has expired or does not exist."""
        token = self._metadata.image.delegation_tokens.get(token_id)
        return token if token is not None and token.is_valid(self._clock.time_ms()) else None

    async def credential(self, mechanism: ScramMechanism, token_id: str, asker: Asker) -> ScramCredential | None:
        """Return the credential of a token, or None if the token has expired or does not exist."""
        if self.valid(token_id) is None:
            return None
        found = self._credentials.get((token_id, mechanism))
        if found is None:
            found = await self._workers.check_login(lambda: self._secret.credential(mechanism, token_id), asker)
            if len(self._credentials) >= CREDENTIALS_MAX:
                self._credentials = {}
            self._credentials[token_id, mechanism] = found
        return found

    def _follow(self, _before: ClusterImage, _after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for record in records:
            if not isinstance(record, DelegationTokensChanged):
                continue
            for token in record.tokens:
                self._ids_by_hmac[self._secret.hmac(token.token_id)] = token.token_id
            for token_id in record.removed:
                self._ids_by_hmac.pop(self._secret.hmac(token_id), None)
                for mechanism in ScramMechanism:
                    self._credentials.pop((token_id, mechanism), None)


class TokenCleaner:
    """Removes expired tokens from the metadata, on the broker that is the controller."""

    def __init__(self, config: BrokerConfig, metadata: Metadata, clock: Clock) -> None:
        self._interval_s = config.delegation_token_expiry_check_interval_ms / 1000
        self._node_id, self._metadata, self._clock = config.node_id, metadata, clock
        self._timer: Timer | None = None
        self._removing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(self._interval_s, self._begin)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._removing is not None:
            self._removing.cancel()

    def _begin(self) -> None:
        self._removing = asyncio.ensure_future(self._remove_and_schedule())

    async def _remove_and_schedule(self) -> None:
        try:
            await self.remove_expired()
        except (ApiError, StorageFault) as error:
            logger.warning("expired delegation tokens were not removed, and will be tried again later: %s", error)
        self.start()

    async def remove_expired(self) -> None:
        """Remove all expired tokens, if this broker is the controller."""
        removed = REMOVED_AT_ONCE_MAX
        while removed == REMOVED_AT_ONCE_MAX and controller_id(self._metadata.image) == self._node_id:
            removed = await self._metadata.change(lambda image: remove_expired(image, self._clock.time_ms()))


def open_tokens(config: BrokerConfig, metadata: Metadata, workers: Workers, clock: Clock) -> TokenRegistry | None:
    """Return the tokens, or None if the settings have no secret for them. Raises ConfigError."""
    return TokenRegistry(config, metadata, workers, clock) if config.delegation_token_secret_key else None
