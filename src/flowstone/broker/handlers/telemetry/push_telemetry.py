"""PushTelemetry, version 0: take the metrics of a client, for `/metrics` (KIP-714)."""

from __future__ import annotations

from flowstone.broker.handlers.telemetry.get_telemetry_subscriptions import NO_ID
from flowstone.broker.requests.client_telemetry import TELEMETRY_BYTES_MAX
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode, ProtocolError
from flowstone.wire.compression import Codec, DecompressError, PayloadTooLarge, decompress
from flowstone.wire.messages import PushTelemetryRequest, PushTelemetryResponse
from flowstone.wire.otlp import read_points


def handle(services: Services, context: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    instance_id = bytes(request.client_instance_id)
    if instance_id == NO_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a push names its client's instance id")
    is_last = request.terminating
    services.telemetry.check_push(instance_id, request.subscription_id, context.session, is_last=is_last)
    if request.compression_type not in Codec.__members__.values():
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if len(request.metrics) > TELEMETRY_BYTES_MAX:
        raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE)
    if request.metrics:
        try:
            points = read_points(_content(request))
        except ProtocolError as error:
            raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
        services.telemetry.push(instance_id, points)
    return PushTelemetryResponse()


def _content(request: PushTelemetryRequest) -> bytes:
    codec = Codec(request.compression_type)
    if codec is Codec.NONE:
        return bytes(request.metrics)
    try:
        return bytes(decompress(codec, request.metrics, TELEMETRY_BYTES_MAX))
    except PayloadTooLarge:
        raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE) from None
    except DecompressError:
        raise ApiError(ErrorCode.INVALID_RECORD, "the pushed metrics cannot be decompressed") from None
