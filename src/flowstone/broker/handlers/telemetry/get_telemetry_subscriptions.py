"""GetTelemetrySubscriptions, version 0: return which metrics a client should push, and how often (KIP-714).

A client without an instance id gets one. A client that no subscription matches is told to push nothing.
"""

from __future__ import annotations

from uuid import uuid4

from flowstone.broker.requests.client_telemetry import TELEMETRY_BYTES_MAX
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.wire.compression import Codec
from flowstone.wire.messages import GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse

NO_ID = bytes(16)
_CODECS = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)


def handle(
    services: Services, context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    asked_id = bytes(request.client_instance_id)
    instance_id = uuid4().bytes if asked_id == NO_ID else asked_id
    subscription = services.telemetry.subscribe(instance_id, context.session)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=subscription.subscription_id,
        accepted_compression_types=[int(codec) for codec in _CODECS],
        push_interval_ms=subscription.interval_ms,
        telemetry_max_bytes=TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=list(subscription.prefixes),
    )
