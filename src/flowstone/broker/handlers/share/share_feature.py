"""The switch of share groups: the finalized level of the feature `share.version`."""

from __future__ import annotations

from flowstone.broker.requests.context import Services
from flowstone.cluster.image.features import SHARE_VERSION
from flowstone.errors import ApiError, ErrorCode


def check_share_groups(services: Services) -> None:
    """Raise ApiError if share groups are switched off."""
    if services.metadata.image.feature_level(SHARE_VERSION) < 1:
        message = f"Share groups are off in this cluster: raise the feature {SHARE_VERSION} to level 1."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)
