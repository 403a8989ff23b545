"""ApiVersions, versions 0 to 4: list the APIs and versions that this broker serves, from the registry.

A request in an unknown version gets UNSUPPORTED_VERSION and the list, which dispatch encodes as version 0, so that the
client can choose a version.

Since version 3 the response also lists features: the levels that this broker supports, those that the cluster has
finalized, and as their epoch the offset of the metadata log, which only grows. Versions before 4 leave out features
with a level 0, on which older clients fail (KAFKA-17492).

The APIs of client telemetry are listed while there is a subscription to metrics of clients. Kafka lists them only if it
has a receiver, and librdkafka logs a line for each client where they are listed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.cluster.image.features import advertised_features
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    ApiVersionsResponseFinalizedFeature,
    ApiVersionsResponseSupportedFeature,
)

VERSION_MIN, VERSION_MAX = 0, 4
# GetTelemetrySubscriptions and PushTelemetry.
TELEMETRY = frozenset({71, 72})
_SOFTWARE_SINCE_VERSION = 3
_LEVEL_0_SINCE_VERSION = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(
    services: Services,
    context: RequestContext,
    request: ApiVersionsRequest,
    advertised: Sequence[ApiVersionsResponseApiVersion],
) -> ApiVersionsResponse:
    if not VERSION_MIN <= context.api_version <= VERSION_MAX:
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised)
    if context.api_version >= _SOFTWARE_SINCE_VERSION:
        if not _names_its_software(request):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        session = context.session
        session.software_name, session.software_version = request.client_software_name, request.client_software_version
    image = services.metadata.image
    return ApiVersionsResponse(
        api_keys=advertised if image.client_metrics else [each for each in advertised if each.api_key not in TELEMETRY],
        supported_features=[
            ApiVersionsResponseSupportedFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in advertised_features().items()
            if levels.min_level > 0 or context.api_version >= _LEVEL_0_SINCE_VERSION
        ],
        finalized_features_epoch=max(image.version, 0),
        finalized_features=[
            ApiVersionsResponseFinalizedFeature(name=name, max_version_level=level, min_version_level=level)
            for name, level in image.finalized_features().items()
        ],
    )


def _names_its_software(request: ApiVersionsRequest) -> bool:
    return all(_SOFTWARE.fullmatch(text) for text in (request.client_software_name, request.client_software_version))
