"""ApiVersions, versions 0 to 4: which APIs, in which versions, this broker serves.

The list is the registry's. A version that is not served is answered too, with UNSUPPORTED_VERSION and the list, which
dispatch encodes as version 0: the client learns from it what to ask next. No features are advertised, since
none that clients look for is served yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ErrorCode
from flowstone.wire.messages import ApiVersionsRequest, ApiVersionsResponse, ApiVersionsResponseApiVersion

VERSION_MIN, VERSION_MAX = 0, 4
_SOFTWARE_SINCE_VERSION = 3
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
    return ApiVersionsResponse(api_keys=advertised)


def _names_its_software(request: ApiVersionsRequest) -> bool:
    return all(_SOFTWARE.fullmatch(text) for text in (request.client_software_name, request.client_software_version))
